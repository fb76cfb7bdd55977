"""Runs programs as whole processes and says what they cost. Called by session.py; used for both sides of every row.

Wall time is from start to exit. CPU time is user and system time of the process and of the children it waited for.
Peak memory is that of the largest single process among them (what wait4 reports), not a sum over processes; Linux never
reports less than the peak of the process that started it, so this one stays small. A program may print a JSON object as
its last line; what it says there (seconds of its imports, verdicts, tokens) is kept.
"""

import json
import os
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Usage = dict[str, Any]
"""`wall_s`, `cpu_s`, `rss_mib`, and whatever the program said in its last line."""


class ProgramError(Exception):
    """A measured program failed; the message ends with what it printed."""


def run_program(
    command: Sequence[str], *, environment: Mapping[str, str] | None = None, folder: Path | None = None
) -> Usage:
    """Run a program once.

    Args:
        command: the program and its arguments.
        environment: variables on top of this process's own.
        folder: its working directory.

    Returns:
        Wall seconds, CPU seconds, peak MiB, and the fields of the JSON object in its last line of output.

    Raises:
        ProgramError: when it ends with another code than 0.
    """
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        started = time.perf_counter()
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            cwd=folder,
            env={**os.environ, **(environment or {})},
        )
        try:
            _, status, usage = os.wait4(process.pid, 0)
        except BaseException:
            process.kill()
            raise
        wall = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        errors.seek(0)
        printed = output.read().decode(errors="replace")
        complained = errors.read().decode(errors="replace")
    if process.returncode:
        told = "\n".join((printed + complained).splitlines()[-30:])
        raise ProgramError(f"{' '.join(command)} ended with {process.returncode}:\n{told}")
    figures: Usage = {
        "wall_s": round(wall, 3),
        "cpu_s": round(usage.ru_utime + usage.ru_stime, 3),
        "rss_mib": round(usage.ru_maxrss / 1024, 1),
    }
    imports = import_seconds(complained)
    if imports:
        figures["imports_s"] = imports
    return figures | last_object(printed)


def import_seconds(text: str) -> float:
    """Seconds spent importing, summed over what `PYTHONPROFILEIMPORTTIME` made one or more processes print.

    Args:
        text: standard error, other lines among it.

    Returns:
        0 where nothing was profiled.
    """
    return round(sum(import_packages(text).values()), 3)


def import_packages(text: str) -> dict[str, float]:
    """Seconds spent importing, by top-level package, the costliest first.

    Args:
        text: as for `import_seconds`.
    """
    microseconds: Counter[str] = Counter()
    for line in text.splitlines():
        _, mark, rest = line.partition("import time:")
        own, _, named = rest.partition("|")
        if mark and own.strip().isdigit():
            microseconds[named.rpartition("|")[2].strip().partition(".")[0]] += int(own)
    return {name: round(spent / 1e6, 3) for name, spent in microseconds.most_common()}


def last_object(text: str) -> dict[str, Any]:
    """The JSON object in the last line of a program's output; empty when that line is something else.

    Args:
        text: standard output.
    """
    lines = text.strip().splitlines()
    if not lines or not lines[-1].startswith("{"):
        return {}
    try:
        found = json.loads(lines[-1])
    except json.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}

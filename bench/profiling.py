"""Where the time of our side goes: one more run under py-spy, kept beside the figures it explains.

Used by session.py when `--profile` is given; needs the py-spy command on the path (pip install py-spy, in any
environment). Samples are of running threads in all processes of the run, so that time spent waiting does not show.
"""

import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.measuring import run_program

SHOWN = 18
"""Functions kept."""
EVERYWHERE = 0.97
"""Functions with a larger share say nothing."""


class NoProfilerError(Exception):
    """py-spy is not there."""


def profile(
    command: Sequence[str], *, environment: Mapping[str, str], folder: Path, scratch: Path
) -> list[dict[str, Any]]:
    """Run a program under the profiler.

    Args:
        command: the program.
        environment: its variables.
        folder: its working directory.
        scratch: where the samples go.

    Returns:
        Functions by inclusive share of samples, largest first; imports are one entry.

    Raises:
        NoProfilerError: py-spy is not on the path.
    """
    spy = shutil.which("py-spy")
    if spy is None:
        raise NoProfilerError("--profile needs py-spy on the path: pip install py-spy (any environment will do)")
    samples = scratch / "samples.txt"
    options = ["record", "--format", "raw", "--rate", "50", "--subprocesses", "--output", str(samples)]
    run_program([spy, *options, "--", *command], environment=environment, folder=folder)
    return shares(samples.read_text(encoding="utf-8", errors="replace"))


def shares(samples: str) -> list[dict[str, Any]]:
    """What share of samples each function was on the stack in.

    Args:
        samples: py-spy's raw format: frames separated by semicolons, and a count.
    """
    counts: Counter[str] = Counter()
    total = 0
    for line in samples.splitlines():
        stack, _, count = line.rpartition(" ")
        if not count.isdigit():
            continue
        total += int(count)
        names = {_name(frame) for frame in stack.split(";")}
        if "imports" in names:
            names = {"imports"}
        for name in names:
            counts[name] += int(count)
    return [
        {"function": name, "share": round(count / total, 4)}
        for name, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        if name and count / total < EVERYWHERE
    ][:SHOWN]


def _name(frame: str) -> str:
    """`function (folder/file.py)` of `function (a/long/folder/file.py:12)`; empty for frames that say nothing."""
    if "importlib._bootstrap" in frame:
        return "imports"
    function, _, place = frame.partition(" (")
    parts = place.rstrip(")").rpartition(":")[0].split("/")
    if function.startswith(("process ", "<module>", "_bootstrap", "_run_module", "_run_code")) or not parts[-1]:
        return ""
    return f"{function} ({'/'.join(parts[-2:])})"

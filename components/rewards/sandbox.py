"""Runs a model's program against tests, apart from everything. Used by the reward `code_execution` only.

Each program gets a fresh process in its own user, network, process, mount and IPC namespaces: no network (not even
loopback), no other process in sight, a root file system of a few megabytes in memory that holds the interpreter and the
system's libraries read-only, no environment, no capabilities, limits on CPU time, memory, processes, files and wall
clock; it is killed with everything it started. Linux only. `probe` finds out at start whether the platform allows it.

What it does not protect from: a fault in the kernel (there is no system call filter and no virtual machine); a program
that finds out by timing what else runs here; the world-readable files below /usr, /lib and the interpreter's prefix;
and tests that only `assert` inside the program's own process, which a program can cheat (it may replace what the
assertion calls). Tests with an expected value or output are compared outside, where the program cannot reach.
"""

import ast
import json
import marshal
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from components.errors import BadInputError
from components.sections import Section

CHILD = Path(__file__).with_name("sandbox_child.py")
SLACK_SECONDS = 10.0
PROBE_SECONDS = 30.0
MOST_TESTS = 100
WALL_FACTOR = 3
"""All tests of a program together get this many times the wall clock of one; tests not reached are failed."""

MEND = (
    "code_execution runs programs that a model wrote, and this platform does not let it isolate them ({reason}). "
    "Needed: Linux with user namespaces for the user of this step. In a container: a seccomp profile that allows "
    "unshare and mount (docker run --security-opt seccomp=unconfined --security-opt apparmor=unconfined, or a profile "
    "with these calls; Kubernetes: securityContext.seccompProfile.type: Unconfined). On the host: "
    "sysctl user.max_user_namespaces above 0 and, on Ubuntu, kernel.apparmor_restrict_unprivileged_userns=0. "
    "Otherwise take code_execution out of `rewards:`"
)


class Limits(Section):
    """What one program may use."""

    cpu_seconds: Annotated[float, Field(gt=0, le=600)] = 1.0
    """Processor time for each test, rounded up to whole seconds."""
    wall_seconds: Annotated[float, Field(gt=0, le=600)] = 3.0
    """Time on the clock for each test. A program that runs out of either time has failed its remaining tests too."""
    memory_mb: Annotated[int, Field(ge=32)] = 512
    """Address space of each process in MiB."""
    processes: Annotated[int, Field(ge=1)] = 16
    """Processes and threads at a time."""
    file_mb: Annotated[int, Field(ge=1)] = 4
    """Largest file in MiB."""
    disk_mb: Annotated[int, Field(ge=1)] = 16
    """All files together in MiB; they lie in memory."""
    open_files: Annotated[int, Field(ge=16)] = 64
    """Open files of each process."""


@dataclass(frozen=True)
class ProgramTest:
    """One test of a program.

    Attributes:
        request: what the inside is asked: `input`, `call` or `check`.
        expected: the output or the value that is right, None for a check.
    """

    request: Mapping[str, str]
    expected: str | None


def read_tests(column: Any) -> list[ProgramTest] | None:
    """The tests in a dataset cell.

    Args:
        column: a list of, or JSON for, or one of: an assert statement (`assert f(2) == 4`), `{"call": "f(2)",
            "expected": 4}`, `{"input": "2\\n", "output": "4\\n"}`; also `{"inputs": [...], "outputs": [...]}`, and
            Python source with several assert statements.

    Returns:
        The tests, None when there are none.

    Raises:
        ValueError: when the cell is none of these.
    """
    if isinstance(column, str):
        try:
            column = json.loads(column)
        except (ValueError, RecursionError):
            column = [column] if column.strip() else None
    elif hasattr(column, "tolist"):
        column = column.tolist()
    if column is None:
        return None
    if isinstance(column, Mapping):
        if "inputs" in column:
            column = [{"input": i, "output": o} for i, o in zip(column["inputs"], column["outputs"], strict=True)]
        else:
            column = [column]
    if not isinstance(column, list | tuple):
        raise ValueError(f"a test is {type(column).__name__}: write a list of assert statements or mappings")
    tests = [test for item in column for test in _read_test(item)]
    return tests[:MOST_TESTS] or None


def run(code: str, tests: Sequence[ProgramTest], limits: Limits) -> list[bool]:
    """Which tests a program passes.

    Args:
        code: Python source.
        tests: what to try, each in a process of its own.
        limits: what each may use.

    Raises:
        BadInputError: when the platform does not allow the isolation.
    """
    results = execute(code, [test.request for test in tests], limits).results
    passed = [_passed(test, result) for test, result in zip(tests, results, strict=False)]
    return passed + [False] * (len(tests) - len(passed))


def probe(limits: Limits) -> None:
    """Find out whether programs can be isolated here.

    Raises:
        BadInputError: when they cannot, with what is missing and what to change.
    """
    # Time enough for a machine that does other things: this asks whether, not how fast.
    trial = execute("", [{"call": "6 * 7"}], limits.model_copy(update={"wall_seconds": PROBE_SECONDS}))
    for space, inside in zip(("net", "user"), trial.namespaces, strict=True):
        if inside == str(Path(f"/proc/self/ns/{space}").readlink()):
            raise BadInputError(MEND.format(reason=f"the {space} namespace stayed the same"))
    if trial.results != (Result("done", 0, "42"),):
        raise BadInputError(MEND.format(reason=f"a trial program ended with {trial.results}"))


def _read_test(item: Any) -> list[ProgramTest]:
    if isinstance(item, Mapping):
        if "input" in item and "output" in item:
            return [ProgramTest({"input": str(item["input"])}, str(item["output"]))]
        if "call" in item and "expected" in item:
            return [ProgramTest({"call": str(item["call"])}, repr(item["expected"]))]
        raise ValueError(f"a test has keys {sorted(item)}: write input and output, or call and expected")
    if not isinstance(item, str):
        raise ValueError(f"a test is {type(item).__name__}: write an assert statement or a mapping")
    try:
        statements = ast.parse(item).body
    except SyntaxError as error:
        raise ValueError(f"a test is no Python: {error}") from None
    setup: list[str] = []
    tests: list[ProgramTest] = []
    for statement in statements:
        source = ast.unparse(statement)
        if not isinstance(statement, ast.Assert):
            setup.append(source)
            continue
        pair = _expected(statement.test) if not setup else None
        if pair is not None:
            tests.append(ProgramTest({"call": pair[0]}, pair[1]))
        else:
            tests.append(ProgramTest({"check": "\n".join([*setup, source])}, None))
    if not tests and setup:
        tests.append(ProgramTest({"check": "\n".join(setup)}, None))
    return tests


def _expected(test: ast.expr) -> tuple[str, str] | None:
    """`f(x) == literal` as a call and the literal, so that it is compared outside."""
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq):
        try:
            return ast.unparse(test.left), repr(ast.literal_eval(test.comparators[0]))
        except (ValueError, TypeError):
            return None
    return None


def _passed(test: ProgramTest, result: "Result") -> bool:
    if result.status != "done":
        return False
    if "check" in test.request:
        return result.text == "passed"
    expected = test.expected or ""
    if "input" in test.request:
        return _lines(result.text) == _lines(expected)
    try:
        return bool(ast.literal_eval(result.text) == ast.literal_eval(expected))
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        # The value is whatever a program printed as its repr: not always a literal, and not always a sane one.
        return result.text == expected


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]


@dataclass(frozen=True)
class Result:
    """What came of one test: `done`, `error`, `killed` or `timeout`; the exit code or signal; what was said."""

    status: str
    number: int
    text: str


@dataclass(frozen=True)
class Run:
    """A program's results, as many as it was given time for, and the network and user namespace it ran in."""

    results: tuple[Result, ...]
    namespaces: tuple[str, str]


def execute(code: str, tests: Sequence[Mapping[str, str]], limits: Limits) -> Run:
    """Run a program once for each test, isolated.

    Args:
        code: Python source.
        tests: `{"call": expression}` (its repr is said), `{"check": statements}` ("passed" is said) or
            `{"input": text}` (the program's output is said).
        limits: what each may use.

    Raises:
        BadInputError: when the platform does not allow the isolation.
    """
    if not sys.platform.startswith("linux"):
        raise BadInputError(MEND.format(reason=f"this is {sys.platform}"))
    request = {
        "code": code,
        "tests": [dict(test) for test in tests],
        "limits": {name: getattr(limits, name) for name in Limits.model_fields},
        "readable": _readable(),
        "all_seconds": WALL_FACTOR * limits.wall_seconds,
    }
    process = subprocess.Popen(  # noqa: S603 (our own interpreter and file)
        [sys.executable, "-I", "-S", str(CHILD)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": "/tmp"},  # noqa: S108 (the sandbox's own)
        cwd="/",
        start_new_session=True,
    )
    try:
        out, errors = process.communicate(
            marshal.dumps(request), timeout=(WALL_FACTOR + 1) * limits.wall_seconds + SLACK_SECONDS
        )
    except subprocess.TimeoutExpired:
        process.kill()
        out, errors = process.communicate()
    head, _, rest = out.partition(b"\n")
    word, _, said = head.decode(errors="replace").partition(" ")
    if word != "isolated":
        last = said or (errors.decode(errors="replace").strip().splitlines() or [f"exit code {process.returncode}"])[-1]
        raise BadInputError(MEND.format(reason=last))
    net, _, user = said.partition(" ")
    return Run(tuple(_results(rest)), (net, user))


def _results(rest: bytes) -> Iterator[Result]:
    while rest:
        head, _, rest = rest.partition(b"\n")
        words = head.decode(errors="replace").split()
        if len(words) != 3 or len(rest) < int(words[2]):
            return  # cut off: the sandbox was killed while it wrote
        status, number, length = words[0], int(words[1]), int(words[2])
        yield Result(status, number, rest[:length].decode(errors="replace"))
        rest = rest[length:]


def _readable() -> list[str]:
    """Folders the interpreter needs; links stay links."""
    prefixes = {str(Path(path).resolve()) for path in (sys.base_prefix, sys.base_exec_prefix)}
    system = ["/usr", "/bin", "/lib", "/lib64", "/lib32"]
    inside_system = {prefix for prefix in prefixes if prefix == "/usr" or prefix.startswith("/usr/")}
    return [path for path in system if os.path.lexists(path)] + sorted(prefixes - inside_system)


FENCE = re.compile(r"```[ \t]*(?:python|py|python3)?[ \t]*\n(.*?)```", re.DOTALL | re.IGNORECASE)


def program_of(answer: str) -> str:
    """The program in an answer: the one fenced block where there is one, else all of it."""
    blocks = FENCE.findall(answer)
    return str(blocks[0]) if len(blocks) == 1 else answer

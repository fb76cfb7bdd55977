"""Programs that a model might write, run for real in the sandbox. Skipped where the platform cannot isolate them."""

import marshal
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from components.contract import default_contract
from components.contract.config import ContractConfig
from components.errors import BadInputError
from components.rewards import library_reward, sandbox
from components.rewards.config import RewardsConfig
from components.rewards.guard import RewardGuard
from components.rewards.sandbox import Limits, execute, probe, read_tests, run

try:
    probe(Limits())
    REFUSED = ""
except BadInputError as error:
    REFUSED = str(error)

needs_isolation = pytest.mark.skipif(bool(REFUSED), reason=REFUSED[:200])
LIMITS = Limits(cpu_seconds=1, wall_seconds=8)
"""A long wall clock: the machine may be busy."""


def said(code, expression, **limits):
    result = execute(code, [{"call": expression}], LIMITS.model_copy(update=limits)).results[0]
    return result.text if result.status == "done" else f"{result.status}: {result.text}"


def passed(code, *tests):
    return run(code, [test for cell in tests for test in read_tests(cell) or []], LIMITS)


@needs_isolation
def test_asserts_calls_and_outputs_are_tried_one_by_one():
    assert passed(
        "def f(x): return x * 2",
        "assert f(2) == 4",
        "assert f(3) == 7",
        {"call": "f([1])", "expected": [1, 1]},
        "assert abs(f(0.5) - 1) < 1e-9",
        "x = 3\nassert f(x) == 6",
    ) == [True, False, True, True, True]
    assert passed("print(int(input()) * 2)", {"inputs": ["2\n", "5\n"], "outputs": ["4\n", "11"]}) == [True, False]


@needs_isolation
def test_a_program_cannot_pass_by_what_it_does_to_the_test():
    liar = "class T:\n  def __eq__(self, o): return True\n  def __repr__(self): return 'T'\ndef f(x): return T()"
    assert passed(liar, "assert f(2) == 4") == [False]
    odd = "class T:\n  def __repr__(self): return '{[]: 1}'\ndef f(x): return T()"
    assert passed(odd, "assert f(2) == {1: 2}") == [False]
    deep = "class T:\n  def __repr__(self): return '-' * 60_000 + '4'\ndef f(x): return T()"
    assert passed(deep, "assert f(2) == 4") == [False]
    for leaving in ("import os; os._exit(0)", "import sys; sys.exit(0)", "raise SystemExit", "print('passed')"):
        assert passed(f"{leaving}\ndef f(x): return 0", "assert f(2) == 4", {"input": "", "output": "4"}) == [
            False,
            False,
        ]
    assert passed("import builtins; builtins.print = None\ndef f(x): return 4", "assert f(2) == 4") == [True]


@needs_isolation
def test_one_test_cannot_reach_the_next():
    code = "import builtins\ndef f(x):\n  builtins.len = lambda _: 0\n  open('/tmp/x', 'w').write('1')\n  return 0"
    assert passed(code, "assert f(1) == 0", "assert len([1]) == 1") == [True, True]


@needs_isolation
@pytest.mark.parametrize(
    ("what", "code", "expression", "expected"),
    [
        ("network", "import socket", "socket.create_connection(('127.0.0.1', 80), 1)", "Network is unreachable"),
        ("other networks", "import socket", "[n for _, n in socket.if_nameindex()]", "['lo']"),
        ("files", "import os", "os.path.exists(" + repr(str(Path(__file__).resolve())) + ")", "False"),
        ("home", "import os", "os.listdir(os.path.expanduser('~'))", "[]"),
        ("etc", "import os", "os.path.exists('/etc/passwd')", "False"),
        ("writing to the system", "", "open('/usr/x', 'w')", "Read-only file system"),
        ("writing to the interpreter", "import sys", "open(sys.base_prefix + '/x', 'w')", "Read-only file system"),
        ("other processes", "import os", "(os.getppid(), os.path.exists('/proc/1'))", "(1, False)"),
        ("killing", "import os", "os.kill(os.getppid(), 9)", "None"),
        ("environment", "import os", "sorted(os.environ)", "['HOME', 'LANG', 'PATH']"),
        ("mounting", "import ctypes", "ctypes.CDLL(None).mount(b'x', b'/tmp', b'tmpfs', 0, None)", "-1"),
        ("becoming root", "import os", "os.setuid(0)", "error: OSError: [Errno 22]"),
        ("open files", "import os", "[f for f in os.listdir('/dev')]", "null"),
        ("large files", "", "open('/tmp/x', 'w').write('a' * 20_000_000)", "File too large"),
        ("many files", "", "[open(f'/tmp/{i}', 'w') for i in range(100)]", "Too many open files"),
        ("memory", "", "len(bytearray(2 << 30))", "MemoryError"),
        ("deep recursion", "def f(): return f()", "f()", "RecursionError"),
    ],
)
def test_what_a_program_cannot_reach(what, code, expression, expected):
    assert expected in said(code, expression)


@needs_isolation
def test_disk_and_processes_are_limited():
    fill = """
def f():
  for done in range(20):
    try:
      open(f"/tmp/{done}", "w").write("a" * 3_000_000)
    except OSError:
      return done"""
    assert int(said(fill, "f()")) < 8
    bomb = """
import os, time
def f():
  for made in range(500):
    try:
      if os.fork() == 0:
        time.sleep(60)
    except OSError:
      return made"""
    assert int(said(bomb, "f()")) <= LIMITS.processes


@needs_isolation
@pytest.mark.parametrize(
    "code",
    [
        "while True: pass",
        "import time; time.sleep(600)",
        "import os, time\nos.setsid()\nif os.fork() == 0: time.sleep(600)\ntime.sleep(600)",
        "import signal\nfor s in (2, 15, 14): signal.signal(s, signal.SIG_IGN)\nwhile True: pass",
        "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass",
        "while True: print('x' * 10_000)",
        "'a' * (1 << 40)",
        "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
    ],
)
def test_programs_that_do_not_end_are_ended_with_their_children(code):
    before = _processes()
    started = time.monotonic()
    tests = read_tests("assert 1 == 1") + read_tests({"input": "", "output": "x"})
    assert run(code, tests, Limits(wall_seconds=2)) == [False, False]
    assert time.monotonic() - started < 60
    assert _processes() <= before


@needs_isolation
def test_probe_leaves_this_process_as_it_was():
    mine = str(Path("/proc/self/ns/net").readlink()), os.getuid()
    probe(Limits())
    assert (str(Path("/proc/self/ns/net").readlink()), os.getuid()) == mine


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
@pytest.mark.skipif(not Path("/usr/bin/python3").exists(), reason="needs an interpreter that everybody may run")
def test_an_ordinary_user_can_isolate_programs_as_well():
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o755)
    child = Path(shutil.copy(sandbox.CHILD, folder / "child.py"))
    child.chmod(0o644)
    request = {
        "code": "import os",
        "tests": [{"call": "(os.getuid(), os.path.exists('/etc'))"}, {"call": "open('/usr/x', 'w')"}],
        "limits": LIMITS.model_dump(),
        "readable": ["/usr", "/bin", "/lib", "/lib64"],
        "all_seconds": 20,
    }
    done = subprocess.run(
        ["/usr/bin/python3", "-I", "-S", child],
        input=marshal.dumps(request), capture_output=True, user=65534, group=65534, extra_groups=[], cwd="/",
    )  # fmt: skip
    shutil.rmtree(folder)
    if done.stdout.startswith(b"refused unshare"):
        pytest.skip("this platform allows it to root only")
    assert done.stdout.startswith(b"isolated net:["), done
    assert b"(65534, False)" in done.stdout
    assert b"Read-only file system" in done.stdout


def test_where_isolation_is_missing_code_rewards_are_refused_with_what_to_change(monkeypatch, tmp_path):
    child = tmp_path / "child.py"
    child.write_text("print('refused unshare a user namespace: Operation not permitted')")
    monkeypatch.setattr(sandbox, "CHILD", child)
    with pytest.raises(BadInputError) as caught:
        library_reward("code_execution")
    assert "Operation not permitted" in str(caught.value)
    assert "seccomp" in str(caught.value)
    assert "kernel.apparmor_restrict_unprivileged_userns=0" in str(caught.value)


def test_a_cell_that_is_no_test_is_said_to_be_none():
    for cell in ({"in": 1}, ["assert f(1) =="], [3], 3, "7"):
        with pytest.raises(ValueError, match="a test is|a test has"):
            read_tests(cell)
    assert read_tests(None) is None
    assert read_tests("[]") is None


ADD = "```python\ndef add(a, b):\n    return a + b\n```"


def write(answer):
    return default_contract().write("A function that adds.", answer)


@needs_isolation
def test_the_reward_is_the_share_of_tests_passed():
    tests = ["assert add(1, 2) == 3", "assert add(1, 1) == 3", "assert add(0, 0) == 0", "assert add(2, 2) == 4"]
    completions = [write(ADD), write(ADD.replace("+", "*")), write("no code here"), ADD, write(ADD)]
    function = library_reward("code_execution", wall_seconds=8).function
    assert function(prompts=[None] * 5, completions=completions, tests=[tests] * 4 + [None]) == [
        0.75, 0.5, 0.0, 0.0, None,
    ]  # fmt: skip
    strict = library_reward("code_execution", wall_seconds=8, all_or_nothing=True).function
    assert strict(prompts=[None], completions=completions[:1], tests=[tests]) == [0.0]


@needs_isolation
def test_code_runs_in_the_guard_and_a_bad_test_cell_is_an_error_of_that_row():
    config = RewardsConfig.model_validate({"preset": "code", "guard": {"max_error_rate": 1.0}, "code_execution": {
        "options": {"wall_seconds": 8}}})  # fmt: skip
    with RewardGuard(config, ContractConfig()) as guard:
        completions = [write(ADD)] * 3
        scores = guard.score([None] * 3, completions, {"tests": ["assert add(1, 2) == 3", "assert add(", None]})
    assert scores.values["code_execution"] == [1.0, None, None]
    assert scores.values["strict_format"] == [1.0, None, 1.0]
    assert [(f.index, "a test is no Python" in f.message) for f in scores.failures] == [(1, True)]


def _processes():
    """Python processes of the sandbox that are alive."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if b"sandbox_child" in command:
                found.add(int(entry.name))
    return found

"""What a measured program is said to have cost."""

import sys

import pytest

from bench.measuring import ProgramError, import_packages, import_seconds, last_object, run_program


def test_wall_cpu_memory_and_the_last_line_are_kept():
    program = "import time; x = bytearray(60 << 20); time.sleep(0.3); print('chatter'); print('{\"tokens\": 7}')"

    usage = run_program([sys.executable, "-c", program])

    assert 0.3 <= usage["wall_s"] < 20
    assert usage["cpu_s"] < usage["wall_s"]
    assert usage["rss_mib"] > 60
    assert usage["tokens"] == 7


def test_the_cpu_time_of_children_counts():
    child = "import time; end = time.process_time() + 0.3\nwhile time.process_time() < end: pass"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}], check=True)"

    assert run_program([sys.executable, "-c", parent])["cpu_s"] >= 0.3


def test_a_failing_program_says_what_it_printed():
    with pytest.raises(ProgramError, match="ended with 3") as raised:
        run_program([sys.executable, "-c", "import sys; print('the reason', file=sys.stderr); sys.exit(3)"])

    assert "the reason" in str(raised.value)


def test_import_times_are_summed_over_processes_and_other_lines_ignored():
    text = (
        "import time: self [us] | cumulative | imported package\n"
        "import time:      1500 |       2000 |   numpy\n"
        "WARNING something else | 12\n"
        "import time:    500000 |     600000 | torch\n"
    )

    assert import_seconds(text) == pytest.approx(0.5015, abs=1e-3)


def test_import_times_are_summed_by_package_costliest_first():
    text = "import time: 1000 | 1 | numpy\nimport time: 5000 | 1 |   torch.nn\nimport time: 2000 | 1 | torch"

    assert list(import_packages(text).items()) == [("torch", 0.007), ("numpy", 0.001)]


@pytest.mark.parametrize("text", ["", "plain", "{broken", "[1, 2]", '{"a": 1}\nlast words'])
def test_a_last_line_that_is_no_object_says_nothing(text):
    assert last_object(text) == {}

"""A step says how it starts and ends, and its exit code says whose fault a failure is."""

import json

import pytest

from components.errors import BadInputError, ExitCode, GateFailedError, PipelineError, ResumableError
from components.steps import EVENTS_VARIABLE, report_progress, step, work_directory


@pytest.fixture
def events(tmp_path, monkeypatch):
    path = tmp_path / "events.jsonl"
    monkeypatch.setenv(EVENTS_VARIABLE, str(path))
    return lambda: [json.loads(line) for line in path.read_text().splitlines()]


def test_a_step_that_ends_well_reports_start_and_end(events):
    with step("merge_lora"):
        report_progress("merge_lora", 1, 2, figures={"reward": 0.5})
    assert [(e["step"], e["event"]) for e in events()] == [
        ("merge_lora", "started"),
        ("merge_lora", "progress"),
        ("merge_lora", "finished"),
    ]
    assert events()[1]["figures"] == {"reward": 0.5}


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (PipelineError, ExitCode.ERROR),
        (BadInputError, ExitCode.BAD_INPUT),
        (GateFailedError, ExitCode.GATE_FAILED),
        (ResumableError, ExitCode.RESUMABLE),
    ],
)
def test_a_known_failure_exits_with_its_code_and_one_sentence(events, capsys, error, code):
    with pytest.raises(SystemExit) as caught, step("train_grpo"):
        raise error("the reason and the mend")
    assert caught.value.code == int(code)
    assert "train_grpo: the reason and the mend" in capsys.readouterr().err
    assert events()[-1]["exit_code"] == int(code)
    assert events()[-1]["message"] == "the reason and the mend"


def test_a_fault_of_ours_keeps_its_traceback(events):
    with pytest.raises(ZeroDivisionError), step("train_grpo"):
        print(1 / 0)
    assert events()[-1]["fault"] is True
    assert events()[-1]["exit_code"] == int(ExitCode.ERROR)


def test_the_work_folder_is_below_the_named_root(tmp_path, monkeypatch):
    monkeypatch.setenv("GRPO_WORK", str(tmp_path))
    assert work_directory("merge_lora") == tmp_path / "merge_lora"
    assert (tmp_path / "merge_lora").is_dir()

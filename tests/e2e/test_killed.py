"""A run killed at any step goes on with the next `grpo run`, and ends with the same result."""

import json
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from tests.e2e.conftest import Grpo

pytestmark = pytest.mark.slow

SHORT = [
    "training.max_steps=6",
    "training.save_steps=2",
    "training.validation_rows=8",
    "smoke_test.rows=3",
    "smoke_test.prompts=2",
    "evaluation.limit=48",
    "gates.min_rows=40",
]
# evaluate_holdout runs twice, for the base and for the candidate.
POINTS = [
    ("import_model", 1),
    ("prepare_dataset", 1),
    ("smoke_test_rewards", 1),
    ("train_grpo", 1),
    ("merge_lora", 1),
    ("evaluate_holdout", 1),
    ("evaluate_holdout", 2),
    ("judge_candidate", 1),
    ("register_model", 1),
]


def arguments(quickstart: Path) -> list[str]:
    return ["run", str(quickstart), *(part for setting in SHORT for part in ("--set", setting))]


def events_of_newest_run(folder: Path) -> list[dict]:
    files = sorted(folder.glob(".grpo/runs/*/events.jsonl"))
    lines = files[-1].read_text().splitlines(keepends=True) if files else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def start_and_reach(grpo: Grpo, quickstart: Path, step: str, time_of_step: int = 1) -> subprocess.Popen:
    """Start a run; return it soon after a step has begun its work for the nth time."""
    before = len(list(grpo.folder.glob(".grpo/runs/*")))
    process = grpo.start(*arguments(quickstart))
    deadline = time.monotonic() + 240
    while True:
        assert time.monotonic() < deadline, f"{step} was not reached"
        assert process.poll() is None, f"the run ended before {step}: {process.stdout.read()}"
        found = events_of_newest_run(grpo.folder) if len(list(grpo.folder.glob(".grpo/runs/*"))) > before else []
        places = [n for n, event in enumerate(found) if (event["event"], event["step"]) == ("started", step)]
        if len(places) >= time_of_step:
            if len(found) == places[time_of_step - 1] + 1:
                time.sleep(0.3)  # it has reported nothing yet: give it time to begin
            return process
        time.sleep(0.02)


def kill_at(grpo: Grpo, quickstart: Path, step: str, time_of_step: int) -> None:
    """Start a run and kill all of it, with SIGKILL, in the middle of a step."""
    process = start_and_reach(grpo, quickstart, step, time_of_step)
    everything = [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]
    for each in everything:
        try:
            each.send_signal(signal.SIGKILL)
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(everything, timeout=10)
    process.wait(10)
    process.stdout.close()


def result_of(folder: Path) -> dict:
    summary = next(event["summary"] for event in events_of_newest_run(folder) if event["event"] == "summary")
    weights = Path(summary["places"]["model"].removeprefix("file://")) / "manifest.json"
    return {
        "metrics": summary["metrics"],
        "verdict": summary["verdict"],
        "version": summary["version"],
        "weights": {
            entry["path"]: entry["sha256"]
            for entry in json.loads(weights.read_text())["files"]
            if entry["path"] != "merge_report.json"  # says how long the merge took
        },
    }


def test_killed_at_every_step_it_goes_on_and_ends_with_the_same_result(
    grpo: Grpo, quickstart: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    undisturbed = Grpo(tmp_path_factory.mktemp("undisturbed"))
    whole = undisturbed(*arguments(quickstart))
    assert whole.returncode in (0, 3), whole.stdout + whole.stderr  # so few steps may fail a gate
    expected = result_of(undisturbed.folder)
    for step, time_of_step in POINTS:
        kill_at(grpo, quickstart, step, time_of_step)
    final = grpo(*arguments(quickstart))
    assert final.returncode == whole.returncode, final.stdout + final.stderr
    assert result_of(grpo.folder) == expected


def test_ctrl_c_stops_every_process_and_says_how_to_go_on(grpo: Grpo, quickstart: Path) -> None:
    process = start_and_reach(grpo, quickstart, "train_grpo")
    children = psutil.Process(process.pid).children(recursive=True)
    assert len(children) >= 2  # the runner and the step
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 4, output
    assert "go on    grpo run" in output
    _, alive = psutil.wait_procs(children, timeout=10)
    assert not alive

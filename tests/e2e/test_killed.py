"""A run killed at any step goes on with the next `grpo run`, and ends with the same result."""

import json
import signal
import subprocess
import time
from collections.abc import Callable
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
STEPS = 9
"""Of a run; evaluate_holdout is two of them, for the base and for the candidate."""


def begun(events: list[dict]) -> list[tuple[str, str]]:
    """The steps that began, in order, with what each worked on where it runs more than once."""
    return [
        (event["step"], event.get("subject", ""))
        for event in events
        if event["event"] == ("subject" if event["step"] == "evaluate_holdout" else "started")
    ]


def arguments(quickstart: Path) -> list[str]:
    return ["run", str(quickstart), *(part for setting in SHORT for part in ("--set", setting))]


def events_of_newest_run(folder: Path) -> list[dict]:
    files = sorted(folder.glob(".grpo/runs/*/events.jsonl"))
    lines = files[-1].read_text().splitlines(keepends=True) if files else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def start_and_reach(
    grpo: Grpo, quickstart: Path, wanted: Callable[[tuple[str, str]], bool]
) -> tuple[subprocess.Popen, tuple[str, str]]:
    """Start a run; return it, and the step, soon after a step that is wanted has begun its work."""
    before = len(list(grpo.folder.glob(".grpo/runs/*")))
    process = grpo.start(*arguments(quickstart))
    deadline = time.monotonic() + 240
    while True:
        assert time.monotonic() < deadline, "no step that is wanted was reached"
        assert process.poll() is None, f"the run ended before: {process.stdout.read()}"
        found = events_of_newest_run(grpo.folder) if len(list(grpo.folder.glob(".grpo/runs/*"))) > before else []
        step = next(filter(wanted, begun(found)), None)
        if step is not None:
            if found[-1]["event"] in ("started", "subject"):
                time.sleep(0.3)  # it has reported nothing yet: give it time to begin
            return process, step
        time.sleep(0.02)


def kill_in_a_new_step(grpo: Grpo, quickstart: Path, killed: set[tuple[str, str]]) -> tuple[str, str]:
    """Start a run and kill all of it, with SIGKILL, in the middle of the first step that was not killed yet."""
    process, step = start_and_reach(grpo, quickstart, lambda step: step not in killed)
    everything = [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]
    for each in everything:
        try:
            each.send_signal(signal.SIGKILL)
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(everything, timeout=10)
    process.wait(10)
    process.stdout.close()
    return step


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
    killed: set[tuple[str, str]] = set()
    while len(killed) < STEPS:
        killed.add(kill_in_a_new_step(grpo, quickstart, killed))
    final = grpo(*arguments(quickstart))
    assert final.returncode == whole.returncode, final.stdout + final.stderr
    assert result_of(grpo.folder) == expected


def test_ctrl_c_stops_every_process_and_says_how_to_go_on(grpo: Grpo, quickstart: Path) -> None:
    process, _ = start_and_reach(grpo, quickstart, lambda step: step[0] == "train_grpo")
    children = psutil.Process(process.pid).children(recursive=True)
    assert len(children) >= 2  # the runner and the step
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 4, output
    assert "go on    grpo run" in output
    _, alive = psutil.wait_procs(children, timeout=10)
    assert not alive

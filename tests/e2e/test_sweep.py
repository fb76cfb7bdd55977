"""A sweep on this machine: one run, a training a point, a leader board, and only the winner meets the holdout."""

import json
import sqlite3

import pytest

pytestmark = pytest.mark.slow

QUICK = [
    "training.max_steps=4", "training.save_steps=4", "training.validation_rows=8", "evaluation.limit=24",
    "smoke_test.prompts=4", "smoke_test.rows=5",
]  # fmt: skip


def events(folder):
    run = sorted((folder / ".grpo" / "runs").iterdir())[-1]
    return [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]


@pytest.mark.timeout(500)
def test_the_best_point_is_judged_and_one_that_a_guard_stops_is_last(grpo, quickstart):
    changes = [part for change in QUICK for part in ("--set", change)]
    result = grpo("sweep", quickstart, "--grid", "training.learning_rate=5e-4,1e30", *changes)
    assert result.returncode in (0, 3), result.stdout + result.stderr
    found = events(grpo.folder)
    starts = [event["step"] for event in found if event["event"] == "started"]
    assert starts.count("train_grpo") == 2
    assert starts.count("smoke_test_rewards") == 1
    assert starts.count("merge_lora") == 1
    assert starts.count("evaluate_holdout") == 2
    board = next(event["rows"] for event in found if event["event"] == "leaderboard")
    assert [row["label"] for row in board] == ["training.learning_rate=5e-4", "training.learning_rate=1e30"]
    assert board[0]["accuracy"] is not None
    assert "training stopped" in board[1]["stopped"]
    assert "stopped" in result.stdout
    with sqlite3.connect(grpo.folder / ".grpo" / "mlflow.db") as database:
        parents = database.execute("select value from tags where key = 'mlflow.parentRunId'").fetchall()
        names = {name for (name,) in database.execute("select name from runs")}
    assert len(parents) == 2, "the point that a guard stopped stands under the sweep too"
    assert len(set(parents)) == 1
    assert "quickstart-sweep" in names

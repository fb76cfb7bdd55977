"""What training says beside its bar: notes, samples with reasons, the leader board of a sweep; and `--fresh`."""

import io

import pytest
from rich.console import Console

from pipeline.display import SWEEP_STEPS, RunDisplay, leader_board, sample_lines
from pipeline.submission import new_attempt

SAMPLES = {
    "step": "train_grpo",
    "event": "samples",
    "at": 50,
    "rows": [
        {"completion": "<answer>\n4</answer>", "reward": 0.5, "advantage": -1.2, "reasons": "missing_tag"},
        {"completion": "x" * 300, "reward": None, "advantage": 0.0, "reasons": ""},
    ],
}
BOARD = {
    "step": "choose_winner",
    "event": "leaderboard",
    "rows": [
        {"label": "beta=0", "accuracy": 0.5, "compliance": 0.9, "step": 40, "seconds": 12.0},
        {"label": "beta=1", "accuracy": None, "compliance": None, "step": 0, "seconds": 0.0},
    ],
}


@pytest.fixture
def console():
    return Console(file=io.StringIO(), width=160)


def test_a_sample_is_one_line_with_its_reasons():
    heading, first, second = sample_lines(SAMPLES)
    assert "step 50" in heading
    assert "0.50  -1.20  <answer> 4</answer>  [missing_tag]" in first
    assert "none" in second
    assert len(second) < 130


def test_notes_samples_and_the_board_are_shown(console):
    with RunDisplay(console, SWEEP_STEPS) as display:
        display.on_event({"step": "train_grpo", "event": "note", "message": "out of memory: going on"})
        display.on_event(SAMPLES)
        display.on_event(BOARD)
    shown = console.file.getvalue()
    assert "train: out of memory: going on" in shown
    assert "missing_tag" in shown
    assert "stopped" in shown


def test_the_board_has_the_best_first(console):
    console.print(leader_board(BOARD))
    lines = console.file.getvalue().splitlines()
    first, last = (next(i for i, line in enumerate(lines) if label in line) for label in ("beta=0", "beta=1"))
    assert first < last
    assert "50.0 %" in lines[first]


def test_an_attempt_has_a_name_a_config_takes():
    from pipeline.config import RunSection

    assert RunSection(attempt=new_attempt()).attempt

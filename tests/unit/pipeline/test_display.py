"""What a person sees while a run goes on: lines where there is no terminal."""

import io

import pytest
from rich.console import Console

from components.tracking.config import TrackingConfig
from pipeline.config import absolute_tracking
from pipeline.display import RunDisplay, next_commands


def shown(events):
    """The lines printed for events given as (seconds, step, kind, further fields)."""
    stream = io.StringIO()
    with RunDisplay(Console(file=stream, width=120)) as display:
        for seconds, step, kind, fields in events:
            display.on_event({"time": seconds, "step": step, "event": kind, **fields})
    return stream.getvalue().splitlines()


def progress(done, total, unit="completion", **figures):
    return {"done": done, "total": total, "unit": unit, "figures": figures}


def test_the_time_left_is_that_of_what_is_counted_now():
    lines = shown(
        [
            (0, "evaluate_holdout", "started", {}),
            (0, "evaluate_holdout", "subject", {"subject": "base"}),
            (10, "evaluate_holdout", "progress", progress(50, 100)),
            (20, "evaluate_holdout", "progress", progress(100, 100)),
            (21, "evaluate_holdout", "progress", progress(50, 100, "score")),
        ]
    )
    assert "  evaluate base: 50/100 completions  about 0:10 left" in lines
    assert "  evaluate base: 50/100 scores  about 0:01 left" in lines


def test_the_two_evaluations_are_told_apart_each_with_its_own_time():
    events = []
    for start, subject in ((0, "base"), (100, "candidate")):
        events += [
            (start, "evaluate_holdout", "started", {}),
            (start, "evaluate_holdout", "subject", {"subject": subject}),
            (start + 7, "evaluate_holdout", "finished", {}),
        ]
    lines = shown(events)
    assert [line for line in lines if "evaluate" in line] == [
        "▶ evaluate base",
        "✓ evaluate base (7.0 s)",
        "▶ evaluate candidate",
        "✓ evaluate candidate (7.0 s)",
    ]


def test_figures_stand_beside_the_count():
    lines = shown(
        [(0, "train_grpo", "started", {}), (8, "train_grpo", "progress", progress(4, 8, "step", reward=1.25))]
    )
    assert lines[-1] == "  train: 4/8 steps  reward 1.25  about 0:08 left"


def test_steps_that_did_not_run_are_shown_as_reused():
    lines = shown([(0, "train_grpo", "started", {})])
    assert [line.split(" (")[0] for line in lines[:3]] == [
        "↺ import model",
        "↺ prepare dataset",
        "↺ smoke test rewards",
    ]


@pytest.mark.parametrize(
    ("uri", "option"),
    [(None, ""), ("https://mlflow.example.com", " --tracking-uri https://mlflow.example.com")],
)
def test_the_next_commands_find_the_run_wherever_it_was_tracked(uri, option):
    uri = uri or absolute_tracking(TrackingConfig().uri)
    summary = {"tracking_uri": uri, "run_id": "0123456789abcdef", "version": "quickstart/3"}
    commands = next_commands(summary)
    assert f"grpo show 01234567{option}" in commands
    assert f"grpo promote quickstart/3{option}" in commands
    assert not [line for line in next_commands(summary | {"version": ""}) if "promote" in line]

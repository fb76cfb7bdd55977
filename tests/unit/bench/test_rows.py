"""The rows and their programs."""

import dataclasses
import json

import pytest

from bench.__main__ import main
from bench.completions import make
from bench.measuring import ProgramError, import_seconds
from bench.results import Result
from bench.rows import ROWS, cached, gpu_step, overhead
from bench.rows.overhead import step_seconds
from bench.rows.reward import compare_verdicts
from pipeline.config import load_config


def test_completions_of_a_shorter_list_begin_a_longer_one():
    assert make(20, 0.1) == make(50, 0.1)[:20]


def test_completions_come_in_every_form_right_and_wrong():
    rows = make(400, 0.2)

    assert {row.form for row in rows} == {"plain", "money", "comma", "unit", "boxed", "latex"}
    assert 0.55 < sum(row.right for row in rows) / len(rows) < 0.8


def test_verdicts_are_compared_form_by_form(tmp_path):
    (tmp_path / "peer").write_text('{"verdicts": [0.0, 1.0, null]}')
    (tmp_path / "ours").write_text(
        '{"verdicts": [1.0, 1.0, 1.0], "forms": ["plain", "boxed", "boxed"], "truth": [true, true, false]}'
    )

    plain, boxed = compare_verdicts(tmp_path / "peer", tmp_path / "ours")

    assert (plain["form"], plain["differ"], plain["ours wrong"]) == ("plain", 1, 0)
    assert (boxed["completions"], boxed["differ"], boxed["ours wrong"]) == (2, 1, 1)


def test_the_seconds_of_a_step_run_twice_are_added():
    events = "\n".join(
        f'{{"time": {time}, "step": "evaluate_holdout", "event": "{event}"}}'
        for time, event in ((1, "started"), (2, "progress"), (4, "finished"), (10, "started"), (11.5, "finished"))
    )

    assert step_seconds(events) == {"evaluate_holdout_s": 4.5}
    assert import_seconds(events) == 0


def test_an_unknown_row_is_one_sentence(capsys):
    assert main(["no-such-row"]) == 2
    assert "there is no row 'no-such-row'" in capsys.readouterr().err


def test_pairs_below_one_are_refused(capsys):
    assert main(["compile", "--pairs", "0"]) == 2
    assert "--pairs 0" in capsys.readouterr().err


def test_gpu_rows_are_refused_without_a_gpu(capsys, monkeypatch):
    monkeypatch.setattr("bench.__main__.gpu", lambda: None)

    assert main(["--gpu"]) == 2
    assert "no GPU" in capsys.readouterr().err


def test_the_list_names_every_row(capsys):
    assert main(["--list"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in ROWS)


@pytest.mark.parametrize("name", list(ROWS))
def test_what_was_asked_is_listed_before_anything_is_measured(name, tmp_path):
    result = Result(name, tmp_path)

    ROWS[name].asks(result)

    assert result.data["asks"]
    assert all(ask["met"] is None for ask in result.data["asks"] if "LaTeX" not in ask["what"])


def test_a_row_that_fails_keeps_what_it_has(tmp_path, monkeypatch, capsys):
    def stop(session):
        session.result.case("second run")["runs"]["ours"] = [{"wall_s": 4.0}]
        session.result.save()
        raise ProgramError("it ended with 1")

    monkeypatch.setattr("bench.__main__.RESULTS", tmp_path)
    monkeypatch.setattr("bench.__main__.render", lambda *folders: None)
    monkeypatch.setitem(ROWS, "cached", dataclasses.replace(ROWS["cached"], run=stop))

    assert main(["cached"]) == 1

    written = json.loads((tmp_path / "cached.json").read_text())
    assert written["complete"] is False
    assert written["asks"][0]["value"] == 4.0
    assert "it ended with 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    "settings",
    [cached.TINY, overhead.GATES, gpu_step.SETTINGS, ("training.generation=vllm-colocate",)],
    ids=["cached", "overhead", "gpu-step", "vllm"],
)
def test_what_rows_set_in_the_quickstart_is_valid(settings):
    assert load_config(cached.CONFIG, list(settings)).training.batch_plan().completions > 0


@pytest.mark.parametrize("name", list(ROWS))
def test_a_row_says_what_it_compares(name):
    row = ROWS[name]

    assert row.work
    assert row.peer
    assert row.ask

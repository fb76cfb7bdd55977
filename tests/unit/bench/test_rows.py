"""The rows and their programs."""

import pytest

from bench.__main__ import main
from bench.completions import make
from bench.measuring import import_seconds
from bench.rows import ROWS
from bench.rows.overhead import step_seconds
from bench.rows.reward import compare_verdicts


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
def test_a_row_says_what_it_compares(name):
    row = ROWS[name]

    assert row.work
    assert row.peer
    assert row.ask

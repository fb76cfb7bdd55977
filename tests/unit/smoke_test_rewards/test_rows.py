"""Which rows are tried."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from components.contract import default_contract
from components.errors import BadInputError
from components.smoke_test_rewards.rows import (
    choose_rows,
    draw_training_rows,
    make_row,
    probe_rows,
    read_training_rows,
)

CONTRACT = default_contract()


def row(gold, **columns):
    return make_row("row 1", {"prompt": CONTRACT.messages("?"), "answer": gold, **columns})


def test_a_rare_kind_of_answer_is_among_few_chosen():
    golds = [str(number) for number in range(10, 500)] + ["12500", "-4", "0.5"]
    chosen = {golds[index] for index in choose_rows(golds, 4, seed=0)}
    assert {"12500", "-4", "0.5"} < chosen


def test_equal_answers_come_last():
    golds = ["5"] * 50 + ["6"]
    assert {golds[index] for index in choose_rows(golds, 2, seed=0)} == {"5", "6"}


def test_the_same_seed_chooses_the_same_rows():
    golds = [str(number) for number in range(100)]
    assert choose_rows(golds, 8, seed=3) == choose_rows(golds, 8, seed=3) != choose_rows(golds, 8, seed=4)


def test_fewer_rows_than_wanted_are_all_taken():
    assert sorted(choose_rows(["1", "2"], 8, seed=0)) == [0, 1]


def test_copies_with_known_answers_for_number_tasks():
    copies = probe_rows(CONTRACT, [row("18", solution="9 * 2")], {"answer"}, "answer")
    assert [(copy.gold, copy.columns["answer"], copy.columns["solution"]) for copy in copies] == [
        ("1250", "1250", None),
        ("5", "5", None),
    ]


def test_no_copies_where_a_reward_reads_more_than_the_answer():
    assert probe_rows(CONTRACT, [row("18")], {"answer", "solution"}, "answer") == []


def test_training_rows_come_from_the_training_split_alone(tmp_path):
    prompt = CONTRACT.messages("?")
    for name, answers in (("train", ["1", "2", "3"]), ("validation", ["900"])):
        table = pa.table({"prompt": [prompt] * len(answers), "answer": answers, "tests": ["x"] * len(answers)})
        pq.write_table(table, tmp_path / f"{name}.parquet")
    rows = read_training_rows(tmp_path, 10, seed=0)
    assert sorted(r.gold for r in rows) == ["1", "2", "3"]
    assert rows[0].columns["tests"] == "x"
    assert rows[0].prompt == prompt
    assert {r.label for r in rows} == {"training row 1", "training row 2", "training row 3"}
    assert len(draw_training_rows(tmp_path, 2, seed=0)) == 2


def test_a_folder_without_a_training_split_is_refused(tmp_path):
    with pytest.raises(BadInputError, match=r"train\.parquet"):
        read_training_rows(tmp_path, 1, seed=0)

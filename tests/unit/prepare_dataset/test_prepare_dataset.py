"""The whole step on small data: what it writes, what it leaves out, what it refuses and how."""

import errno
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from components.contract import default_contract
from components.contract.config import ContractConfig
from components.errors import BadInputError, ExitCode
from components.storage.store import fetch

SAMPLE = Path(__file__).parent / "gsm8k_sample.jsonl"


def make_rows(count: int, start: int = 0) -> list[dict[str, Any]]:
    return [
        {"question": f"Ann has {n} apples and buys {n + 1} more. How many has she now?", "answer": str(2 * n + 1)}
        for n in range(start, start + count)
    ]


def read(reference: Any, name: str) -> list[dict[str, Any]]:
    return pq.read_table(fetch(reference) / f"{name}.parquet").to_pylist()


def questions(reference: Any, name: str) -> set[str]:
    return {row["question"] for row in read(reference, name)}


def report_of(reference: Any) -> dict[str, Any]:
    return json.loads((fetch(reference) / "report.json").read_text(encoding="utf-8"))


# --- What it writes ------------------------------------------------------------------------------------------------


def test_gsm8k_rows_become_prompts_with_gold_and_solution(prepare: Callable[..., Any]) -> None:
    prepared = prepare(train=str(SAMPLE), gold="gsm8k", validation_rows=4, holdout_rows=6)
    assert prepared.counts == {"train": 30, "validation": 4, "holdout": 6}
    rows = {row["question"]: row for name in ("train", "validation") for row in read(prepared.dataset, name)}
    rows |= {row["question"]: row for row in read(prepared.holdout, "holdout")}
    first = json.loads(SAMPLE.read_text(encoding="utf-8").splitlines()[0])
    row = rows[first["question"]]
    assert row["answer"] == "72"
    assert row["solution"].endswith("Natalia sold 48+24 = 72 clips altogether in April and May.")
    assert row["prompt"] == default_contract().messages(first["question"])
    assert row["prompt_tokens"] > 20
    assert len({row["id"] for row in rows.values()}) == 40


def test_the_holdout_is_in_its_own_artifact_and_nowhere_else(prepare: Callable[..., Any], write_rows: Any) -> None:
    # Every row twice, so that a repeat of a holdout row is among what is dropped.
    rows = [json.loads(line) for line in SAMPLE.read_text(encoding="utf-8").splitlines()] * 2
    prepared = prepare(train=write_rows("rows.jsonl", rows), gold="gsm8k", max_duplicate_share=0.5, holdout_rows=36)
    dataset, holdout = fetch(prepared.dataset), fetch(prepared.holdout)
    assert sorted(p.name for p in dataset.iterdir() if p.name != "manifest.json") == [
        "report.json",
        "report.md",
        "train.parquet",
        "validation.parquet",
    ]
    assert sorted(p.name for p in holdout.iterdir() if p.name != "manifest.json") == ["holdout.parquet", "report.json"]
    text = (dataset / "report.json").read_text(encoding="utf-8") + (dataset / "report.md").read_text(encoding="utf-8")
    for question in questions(prepared.holdout, "holdout"):
        assert question[:40] not in text


def test_columns_have_fixed_types_and_kept_ones_follow(prepare: Callable[..., Any], write_rows: Any) -> None:
    rows = [row | {"level": n / 2 if n % 2 else n, "tests": [{"in": n}]} for n, row in enumerate(make_rows(12))]
    rows[0]["tests"] = None
    path = write_rows("rows.jsonl", rows)
    prepared = prepare(train=path, columns={"keep": ["level", "tests"]}, batch_rows=5)
    schema = pq.read_schema(fetch(prepared.dataset) / "train.parquet")
    assert schema.names == ["id", "prompt", "question", "answer", "solution", "prompt_tokens", "level", "tests"]
    assert [str(schema.field(name).type) for name in ("solution", "prompt_tokens", "level")] == [
        "string",
        "int32",
        "double",
    ]
    by_question = {row["question"]: row for row in rows}
    for row in read(prepared.dataset, "train"):
        assert row["level"] == by_question[row["question"]]["level"]
        assert row["tests"] == by_question[row["question"]]["tests"]


def test_equal_inputs_give_equal_bytes_whatever_the_batches(prepare: Callable[..., Any], write_rows: Any) -> None:
    path = write_rows("rows.jsonl", make_rows(300))
    first = prepare(train=path, batch_rows=7, store="a")
    second = prepare(train=path, batch_rows=2048, store="b")
    assert first.fingerprint == second.fingerprint
    assert first.dataset.digest == second.dataset.digest
    assert first.holdout.digest == second.holdout.digest


def test_a_fingerprint_changes_with_the_rows(prepare: Callable[..., Any], write_rows: Any) -> None:
    rows = make_rows(50)
    first = prepare(train=write_rows("a.jsonl", rows), holdout=write_rows("h.jsonl", make_rows(5, 900)))
    rows[7]["answer"] = "16"
    second = prepare(train=write_rows("a.jsonl", rows), holdout=write_rows("h.jsonl", make_rows(5, 900)))
    assert first.fingerprint != second.fingerprint
    assert first.holdout_fingerprint == second.holdout_fingerprint


# --- The split -----------------------------------------------------------------------------------------------------


def test_the_split_has_the_asked_sizes_and_does_not_depend_on_the_order(
    prepare: Callable[..., Any], write_rows: Any
) -> None:
    rows = make_rows(200)
    first = prepare(train=write_rows("a.jsonl", rows), validation_rows=20, holdout_rows=30)
    random.Random(1).shuffle(rows)
    second = prepare(train=write_rows("b.jsonl", rows), validation_rows=20, holdout_rows=30)
    other_seed = prepare(train=write_rows("b.jsonl", rows), validation_rows=20, holdout_rows=30, seed=1)
    assert first.counts == {"train": 150, "validation": 20, "holdout": 30}
    assert questions(first.holdout, "holdout") == questions(second.holdout, "holdout")
    assert questions(first.dataset, "validation") == questions(second.dataset, "validation")
    assert questions(first.holdout, "holdout") != questions(other_seed.holdout, "holdout")


def test_one_question_with_two_answers_stays_in_one_split(prepare: Callable[..., Any], write_rows: Any) -> None:
    rows = make_rows(60) + [row | {"answer": "7"} for row in make_rows(60)]
    prepared = prepare(train=write_rows("rows.jsonl", rows), validation_rows=10, holdout_rows=10)
    splits = [questions(prepared.dataset, "train"), questions(prepared.dataset, "validation")]
    splits.append(questions(prepared.holdout, "holdout"))
    assert sum(map(len, splits)) == 60
    assert any("rows ask a question that another row answers otherwise" in text for text in prepared.warnings)


def test_near_copies_of_the_holdout_leave_train(prepare: Callable[..., Any], write_rows: Any) -> None:
    long = "On Monday Ann picks {} red apples in her garden, and {} green ones. How many apples does she pick {}?"
    rows = [
        {"question": long.format(n, n + 3, end), "answer": str(2 * n + 3)}
        for n in range(60)
        for end in ("in all", "in total")
    ]
    prepared = prepare(train=write_rows("rows.jsonl", rows), holdout_rows=20, validation_rows=10)
    numbers = {
        name: {row["answer"] for row in read(reference, name)}
        for reference, name in (
            (prepared.dataset, "train"),
            (prepared.dataset, "validation"),
            (prepared.holdout, "holdout"),
        )
    }
    assert not numbers["train"] & numbers["holdout"]
    assert not numbers["train"] & numbers["validation"]
    assert not numbers["validation"] & numbers["holdout"]
    assert any("near copies of holdout's" in text for text in prepared.warnings)


def test_a_limit_reads_the_first_rows_of_every_source(prepare: Callable[..., Any], write_rows: Any) -> None:
    rows = make_rows(50)
    train = write_rows("a.jsonl", [*rows[:10], {"question": "broken"}, *rows[10:]])
    prepared = prepare(
        train=train, holdout=write_rows("h.jsonl", make_rows(30, 100)), limit=10, validation_rows=2, batch_rows=4
    )
    assert prepared.counts == {"train": 8, "validation": 2, "holdout": 10}


# --- What it leaves out, and says so -------------------------------------------------------------------------------


def test_repeats_and_long_prompts_are_dropped_and_counted(prepare: Callable[..., Any], write_rows: Any) -> None:
    rows = make_rows(40)
    rows.append({"question": rows[3]["question"].upper() + " ", "answer": rows[3]["answer"]})
    rows.append({"question": "long " * 2000, "answer": "1"})
    prepared = prepare(train=write_rows("rows.jsonl", rows), holdout=write_rows("h.jsonl", make_rows(9, 100)))
    assert prepared.counts["train"] + prepared.counts["validation"] == 40
    source = report_of(prepared.dataset)["sources"]["train"]
    assert source["rows_read"] == 42
    assert source["rows_kept"] == 40
    assert sorted(source["dropped"].values()) == [1, 1]
    assert {offence["where"] for offence in source["first_offending_rows"]} == {"rows.jsonl:41", "rows.jsonl:42"}
    assert any("1 of 42 rows dropped: prompts over the token limit" in text for text in prepared.warnings)


def test_broken_rows_up_to_the_allowed_share_are_dropped(prepare: Callable[..., Any], write_rows: Any) -> None:
    rows = [*make_rows(19), {"question": "no gold", "answer": ""}]
    prepared = prepare(train=write_rows("rows.jsonl", rows), max_broken_share=0.05, validation_rows=1, holdout_rows=1)
    assert sum(prepared.counts.values()) == 19
    assert report_of(prepared.dataset)["sources"]["train"]["dropped"] == {"with empty answer": 1}


def test_the_report_shows_lengths_labels_and_samples(prepare: Callable[..., Any], write_rows: Any) -> None:
    rows = [row | {"answer": "1"} for row in make_rows(30)] + make_rows(10, 50)
    prepared = prepare(train=write_rows("rows.jsonl", rows), holdout_rows=5, validation_rows=5)
    train = report_of(prepared.dataset)["splits"]["train"]
    tokens = [row["prompt_tokens"] for row in read(prepared.dataset, "train")]
    assert train["prompt_tokens"]["max"] == max(tokens) == train["longest_prompts"][0]["tokens"]
    assert train["prompt_tokens"]["p50"] in tokens
    assert train["labels"]["top"][0]["answer"] == "1"
    assert train["labels"]["most_common_share"] > 0.5
    assert any("of the gold answers are '1'" in text for text in prepared.warnings)
    assert train["samples"][0]["prompt"].endswith("<|im_start|>assistant\n") or train["samples"][0]["prompt"].endswith(
        "<|im_start|>assistant"
    )
    page = (fetch(prepared.dataset) / "report.md").read_text(encoding="utf-8")
    assert "| train | 30 |" in page


# --- What it refuses -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"question": "q"}, r"rows.jsonl:21: answer is missing"),
        ({"answer": "1"}, r"rows.jsonl:21: question is missing"),
        ({"question": "  ", "answer": "1"}, r"rows.jsonl:21: question is empty"),
        ({"question": "q", "answer": " "}, r"rows.jsonl:21: answer is empty"),
        ({"question": "q", "answer": "many"}, r"rows.jsonl:21: answer has a gold answer no completion could equal"),
        ({"question": ["q"], "answer": "1"}, r"rows.jsonl:21: question is list, not text"),
        ({"question": "q", "answer": True}, r"rows.jsonl:21: answer is true or false"),
        ({"question": "q", "answer": float("nan")}, r"rows.jsonl:21: answer is not a finite number"),
        ({"question": "\ud800", "answer": "1"}, r"rows.jsonl:21: question is not valid text"),
    ],
)
def test_a_broken_row_is_refused_with_its_line(
    prepare: Callable[..., Any], write_rows: Any, row: dict, message: str
) -> None:
    path = write_rows("rows.jsonl", [*make_rows(20), row, *make_rows(5, 50)])
    with pytest.raises(BadInputError, match=message) as refusal:
        prepare(train=path)
    assert "data.train: 1 of 26 rows are broken" in str(refusal.value)
    assert "data.max_broken_share: 0.039" in str(refusal.value)
    assert refusal.value.exit_code == ExitCode.BAD_INPUT


def test_a_row_without_gold_mark_is_refused(prepare: Callable[..., Any], write_rows: Any) -> None:
    rows = [row | {"answer": f"so\n#### {row['answer']}"} for row in make_rows(5)]
    rows[3]["answer"] = "so 7"
    with pytest.raises(BadInputError, match=r"rows.jsonl:4: answer has no gold answer: an answer after '####' was"):
        prepare(train=write_rows("rows.jsonl", rows), gold="gsm8k")


def test_a_csv_with_a_bad_row_is_refused_with_its_line(prepare: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("question,answer\n" + "".join(f"{n} + {n},{2 * n}\n" for n in range(30)) + "1 + 1, is,2\n")
    with pytest.raises(BadInputError, match=r"rows.csv:32: row has 3 fields, the header has 2 \('1 \+ 1, is,2'\)"):
        prepare(train=str(path))


@pytest.mark.parametrize("content", ["", "\n\n"])
def test_an_empty_source_is_refused(prepare: Callable[..., Any], tmp_path: Path, content: str) -> None:
    (tmp_path / "rows.jsonl").write_text(content)
    with pytest.raises(BadInputError, match=r"data.train: .*rows.jsonl has no rows"):
        prepare(train=str(tmp_path / "rows.jsonl"))


def test_a_missing_file_is_refused(prepare: Callable[..., Any], tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"data.train: .*absent.jsonl does not exist"):
        prepare(train=str(tmp_path / "absent.jsonl"))


def test_a_folder_of_two_formats_is_refused(prepare: Callable[..., Any], tmp_path: Path, write_rows: Any) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    write_rows("data/a.jsonl", make_rows(5))
    (folder / "b.csv").write_text("question,answer\n1 + 1,2\n")
    with pytest.raises(BadInputError, match=r"mixes formats \(a.jsonl, b.csv\)"):
        prepare(train=str(folder))


def test_a_folder_is_read_in_the_order_of_its_names(
    prepare: Callable[..., Any], tmp_path: Path, write_rows: Any
) -> None:
    (tmp_path / "data").mkdir()
    write_rows("data/part-1.jsonl", make_rows(10, 10))
    write_rows("data/part-0.jsonl", make_rows(10))
    (tmp_path / "data" / "README.md").write_text("about")
    prepared = prepare(train=str(tmp_path / "data"), holdout_rows=1, validation_rows=1)
    answers = [int(row["answer"]) for row in read(prepared.dataset, "train")]
    assert len(answers) == 18
    assert answers == sorted(answers)


def test_a_holdout_that_overlaps_train_is_refused(prepare: Callable[..., Any], write_rows: Any) -> None:
    train = write_rows("train.jsonl", make_rows(30))
    shared = {"question": make_rows(30)[4]["question"].upper(), "answer": "9"}
    holdout = write_rows("holdout.jsonl", [*make_rows(5, 100), shared])
    with pytest.raises(BadInputError, match=r"1 questions of holdout are also in train.*train.jsonl:5") as refusal:
        prepare(train=train, holdout=holdout, validation_rows=1, seed=3)
    assert "holdout.jsonl:6" in str(refusal.value)
    prepared = prepare(train=train, holdout=holdout, validation_rows=1, overlap="drop", seed=3)
    assert prepared.counts == {"train": 28, "validation": 1, "holdout": 6}


def test_a_holdout_with_near_copies_is_refused_when_asked(prepare: Callable[..., Any], write_rows: Any) -> None:
    train = make_rows(30)
    holdout = [{"question": train[4]["question"].replace("has she now", "does she have now"), "answer": "9"}]
    paths = {"train": write_rows("train.jsonl", train), "holdout": write_rows("holdout.jsonl", holdout)}
    with pytest.raises(
        BadInputError, match=r"near copies of holdout's: train.jsonl:5: question is nearly holdout.jsonl:1"
    ):
        prepare(**paths, validation_rows=1, near_overlap="refuse", near_overlap_similarity=0.4)
    kept = prepare(**paths, validation_rows=1, near_overlap="keep", near_overlap_similarity=0.4)
    assert kept.counts["train"] == 29


def test_a_few_shot_example_from_the_holdout_is_refused(prepare: Callable[..., Any], write_rows: Any) -> None:
    holdout = make_rows(5, 100)
    example = {"question": holdout[2]["question"].lower(), "reasoning": "102 + 103 = 205", "answer": "205"}
    paths = {"train": write_rows("train.jsonl", make_rows(30)), "holdout": write_rows("holdout.jsonl", holdout)}
    with pytest.raises(BadInputError, match=r"contract.examples\[0\]: its question is also in the holdout"):
        prepare(**paths, contract=ContractConfig(examples=(example,)))


def test_too_many_long_prompts_are_refused(prepare: Callable[..., Any], write_rows: Any) -> None:
    rows = [*make_rows(9), {"question": "long " * 2000, "answer": "1"}]
    with pytest.raises(BadInputError, match=r"1 of 10 prompts are over data.max_prompt_tokens: 512 \(10.0%"):
        prepare(train=write_rows("rows.jsonl", rows))


def test_too_many_repeats_are_refused(prepare: Callable[..., Any], write_rows: Any) -> None:
    with pytest.raises(BadInputError, match=r"10 of 20 rows repeat .*rows.jsonl:11"):
        prepare(train=write_rows("rows.jsonl", make_rows(10) * 2))


def test_a_split_that_leaves_nothing_is_refused(prepare: Callable[..., Any], write_rows: Any) -> None:
    with pytest.raises(BadInputError, match=r"data.train has 10 usable rows, and 6 for holdout and 4 for validation"):
        prepare(train=write_rows("rows.jsonl", make_rows(10)), holdout_rows=6, validation_rows=4)


def test_too_few_different_questions_are_refused(prepare: Callable[..., Any], write_rows: Any) -> None:
    rows = [row | {"answer": str(n)} for n in range(5) for row in make_rows(2)]
    with pytest.raises(BadInputError, match="too few different questions"):
        prepare(train=write_rows("rows.jsonl", rows), holdout_rows=4, validation_rows=4)


def test_kept_values_of_two_types_are_refused(prepare: Callable[..., Any], write_rows: Any) -> None:
    rows = [row | {"level": n if n < 10 else "hard"} for n, row in enumerate(make_rows(20))]
    with pytest.raises(BadInputError, match=r"column 'level' .* from rows.jsonl:\d+ on"):
        prepare(train=write_rows("rows.jsonl", rows), columns={"keep": ["level"]}, batch_rows=5)


def test_a_full_disk_is_told_as_such(
    prepare: Callable[..., Any], write_rows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("components.prepare_dataset.prepare_dataset.write_split", full)
    with pytest.raises(BadInputError, match="no space left on the disk"):
        prepare(train=write_rows("rows.jsonl", make_rows(30)))


def test_a_task_without_its_package_is_refused_with_the_extra(
    prepare: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "reasoning_gym", None)
    with pytest.raises(BadInputError, match=r"pip install 'grpo-pipeline\[generated-data\]'"):
        prepare(train={"task": "chain_sum"})

"""Rows to evaluate on: the holdout and further sets, the same subset every time, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from pydantic import ValidationError

from components.contract import default_contract
from components.errors import BadInputError
from components.evaluate_holdout.config import AlsoConfig, EvaluationConfig
from components.evaluate_holdout.questions import QuestionSet, choose_rows, read_also, read_holdout
from components.storage.store import open_store


def rows(count: int) -> list[dict[str, Any]]:
    contract = default_contract()
    return [
        {"id": f"row-{n}", "prompt": contract.messages(f"{n}?"), "question": f"{n}?", "answer": str(n)}
        for n in range(count)
    ]


def write_holdout(directory: Path, content: list[dict[str, Any]]) -> Path:
    directory.mkdir()
    parquet.write_table(pa.Table.from_pylist(content), directory / "holdout.parquet")
    return directory


def test_the_fingerprint_is_the_reports_where_there_is_one(tmp_path: Path) -> None:
    holdout = write_holdout(tmp_path / "h", rows(5))
    own = read_holdout(holdout, None).fingerprint
    assert len(own) == 64
    (holdout / "report.json").write_text(json.dumps({"identity": {"fingerprint": "e" * 64}}))
    assert read_holdout(holdout, None).fingerprint == "e" * 64


def test_a_limit_takes_the_same_rows_in_their_order_wherever_they_lie() -> None:
    content = rows(50)
    chosen = choose_rows(content, 10)
    assert len(chosen) == 10
    assert [row["id"] for row in chosen] == [row["id"] for row in content if row in chosen]
    assert {row["id"] for row in choose_rows(content[::-1], 10)} == {row["id"] for row in chosen}
    assert chosen != content[:10], "not just the first ones"
    assert {row["id"] for row in chosen} < {row["id"] for row in choose_rows(content, 20)}


def test_a_holdout_without_rows_or_columns_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"holds no holdout\.parquet"):
        read_holdout(tmp_path, None)
    with pytest.raises(BadInputError, match="lacks the column 'answer'"):
        read_holdout(write_holdout(tmp_path / "h", [{"id": "1", "prompt": [{"role": "user", "content": "?"}]}]), None)


@pytest.fixture
def holdout() -> QuestionSet:
    return QuestionSet("holdout", rows(4), "f" * 64)


def test_the_holdouts_questions_can_be_asked_in_other_ways(holdout: QuestionSet, tmp_path: Path) -> None:
    contract = default_contract()
    bare = read_also(AlsoConfig(name="bare", system_prompt=False), holdout, contract, tmp_path)
    assert bare.rows[2]["prompt"] == [{"role": "user", "content": "2?"}]
    assert [row["id"] for row in bare.rows] == [row["id"] for row in holdout.rows]
    put = read_also(AlsoConfig(name="put", template="Please: {question} Thanks."), holdout, contract, tmp_path)
    assert put.rows[2]["prompt"] == contract.messages("Please: 2? Thanks.")


def test_other_questions_come_from_a_file_or_the_store(holdout: QuestionSet, tmp_path: Path) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    (folder / "more.jsonl").write_text('{"question": "3 + 4?", "answer": 7}\n\n{"question": "2 + 2?", "answer": "4"}\n')
    local = read_also(AlsoConfig(name="o", path=str(folder / "more.jsonl")), holdout, default_contract(), tmp_path)
    assert [row["answer"] for row in local.rows] == ["7", "4"]
    assert len({row["id"] for row in local.rows}) == 2
    reference = open_store(str(tmp_path / "store")).put(folder, "questions/one", provenance={})
    stored = read_also(AlsoConfig(name="o", path=str(reference)), holdout, default_contract(), tmp_path / "cache")
    assert stored.rows == local.rows
    assert stored.fingerprint == local.fingerprint


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"question": "3 + 4?"}\n', "row 1 has no question or no answer"),
        ("{\n", "line 1 is not JSON"),
        ("[1]\n", "line 1 is no JSON object"),
        ("", "has no rows"),
    ],
)
def test_a_broken_file_is_refused_with_its_place(holdout: QuestionSet, tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "broken.jsonl"
    path.write_text(text)
    with pytest.raises(BadInputError, match=said):
        read_also(AlsoConfig(name="b", path=str(path)), holdout, default_contract(), tmp_path)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"also": [{"name": "same"}]}, "is the holdout itself"),
        ({"also": [{"name": "x", "template": "no place"}]}, "it needs {question}"),
        ({"also": [{"name": "x", "path": "a.jsonl"}, {"name": "x", "path": "b.jsonl"}]}, "two sets are named 'x'"),
        ({"temperature": 0}, "greater than 0"),
        ({"max_new_token": 3}, "Extra inputs"),
    ],
)
def test_sections_that_mean_nothing_are_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        EvaluationConfig.model_validate(values)


def test_paths_are_taken_against_the_configs_folder(tmp_path: Path) -> None:
    (tmp_path / "more.jsonl").write_text('{"question": "1?", "answer": 1}\n')
    config = EvaluationConfig.model_validate({"also": [{"name": "m", "path": "more.jsonl"}]})
    assert config.resolved(tmp_path).local_files() == [tmp_path / "more.jsonl"]
    with pytest.raises(BadInputError, match="does not exist"):
        config.resolved(tmp_path / "elsewhere")

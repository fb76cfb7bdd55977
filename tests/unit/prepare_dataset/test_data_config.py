"""The data section: shorthands, refusals with the mend, paths."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from components.prepare_dataset.config import DataConfig, FileSource, HubSource


def test_a_source_written_as_text_is_a_path() -> None:
    data = DataConfig(train="rows.jsonl", gold="gsm8k")
    assert data.train == FileSource(path="rows.jsonl")
    assert data.gold.preset == "gsm8k"


def test_a_source_is_told_apart_by_its_key() -> None:
    data = DataConfig(train={"hub": "openai/gsm8k", "name": "main"}, holdout={"task": "chain_sum", "seed": 7})
    assert data.train == HubSource(hub="openai/gsm8k", name="main")
    assert data.gold_of(data.holdout).preset == "plain"


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"train": {"pth": "x"}}, "one of: path"),
        ({"train": {"path": "x", "hub": "a/b"}}, "this one has path and hub"),
        ({"train": "x", "holdout": "x"}, "train and holdout are the same source"),
        ({"train": "x", "gold": "regex"}, "gold.pattern belongs to"),
        ({"train": "x", "gold": {"preset": "regex", "pattern": "a(b)(c)"}}, "has 2 groups"),
        ({"train": "x", "gold": {"preset": "regex", "pattern": "a(b"}}, "no regular expression"),
        ({"train": "x", "columns": {"keep": ["completions"]}}, "uses itself"),
        ({"train": "x", "columns": {"keep": ["a", "a"]}}, "named twice"),
        ({"train": "x", "holdout": "y", "holdout_rows": 5}, "remove one"),
        ({"train": "x", "max_overlong_share": 5}, "less than or equal to 1"),
        ({"train": ""}, "is empty"),
        ({"train": "x", "limits": 5}, "Extra inputs"),
    ],
)
def test_what_cannot_be_meant_is_refused(section: dict, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        DataConfig.model_validate(section)


def test_a_section_survives_its_json() -> None:
    data = DataConfig(train={"path": "a.csv", "gold": "boxed"}, holdout="s3://bucket/rows.parquet", limit=3)
    assert DataConfig.from_json(data.to_json()) == data


def test_only_local_paths_are_made_absolute(tmp_path: Path) -> None:
    data = DataConfig(train="rows.jsonl", validation="s3://bucket/v.jsonl", holdout="/elsewhere/h.jsonl")
    absolute = data.with_paths_against(tmp_path)
    assert absolute.train.path == str(tmp_path / "rows.jsonl")
    assert absolute.validation.path == "s3://bucket/v.jsonl"
    assert absolute.holdout.path == "/elsewhere/h.jsonl"


def test_local_files_are_those_of_this_machine(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("{}")
    data = DataConfig(train=str(tmp_path / "rows.jsonl"), holdout={"hub": "openai/gsm8k", "split": "test"})
    assert data.local_files() == [tmp_path / "rows.jsonl"]


def test_a_missing_file_is_named_with_what_may_have_been_meant(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text("{}")
    with pytest.raises(ValueError, match=r"data.train: .*trian.jsonl does not exist; did you mean train.jsonl\?"):
        DataConfig(train=str(tmp_path / "trian.jsonl")).local_files()
    with pytest.raises(ValueError, match=r"write \{hub: openai/gsm8k\}"):
        DataConfig(train="openai/gsm8k").local_files()

"""The step with transformers' own tokenizer: exact counts, GSM8K whole, memory that does not grow with the rows."""

import json
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from components.contract import default_contract
from components.errors import BadInputError
from components.prepare_dataset.config import DataConfig
from components.prepare_dataset.prepare_dataset import PreparedDataset, prepare_dataset
from components.storage.store import fetch, open_store


def prepare(model: Path, folder: Path, **data: object) -> PreparedDataset:
    return prepare_dataset(
        DataConfig.model_validate(data), default_contract(), model, open_store(str(folder / "store")), work=folder / "w"
    )


def test_prompt_tokens_are_those_of_apply_chat_template(model: Path, sample: Path, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    prepared = prepare(model, tmp_path, train=str(sample), gold="gsm8k")
    rows = pq.read_table(fetch(prepared.dataset) / "train.parquet").to_pylist()
    assert len(rows) > 30
    for row in rows:
        ids = tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True)["input_ids"]
        assert row["prompt_tokens"] == len(ids)


def test_the_dataset_loads_as_the_trainer_reads_it(model: Path, sample: Path, tmp_path: Path) -> None:
    import datasets

    prepared = prepare(model, tmp_path, train=str(sample), gold="gsm8k")
    rows = datasets.Dataset.from_parquet(str(fetch(prepared.dataset) / "train.parquet"), cache_dir=str(tmp_path / "c"))
    assert [message["role"] for message in rows[0]["prompt"]] == ["system", "user"]
    assert rows[0]["prompt"][1]["content"] == rows[0]["question"]


@pytest.mark.slow
def test_gsm8k_keeps_every_row_and_nothing_is_odd(model: Path, gsm8k: Path, tmp_path: Path) -> None:
    prepared = prepare(
        model, tmp_path, train=str(gsm8k / "train.jsonl"), holdout=str(gsm8k / "test.jsonl"), gold="gsm8k"
    )
    assert prepared.counts["train"] + prepared.counts["validation"] == 7473
    assert prepared.counts["holdout"] == 1319
    assert prepared.warnings == ()


def test_a_model_without_chat_template_is_refused(model: Path, sample: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    for path in model.iterdir():
        if "chat_template" not in path.name:
            (bare / path.name).write_bytes(path.read_bytes())
    with pytest.raises(BadInputError, match="has no chat template"):
        prepare(bare, tmp_path, train=str(sample), gold="gsm8k")


def test_a_model_without_tokenizer_is_refused(sample: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInputError, match="has no tokenizer that can be loaded"):
        prepare(tmp_path / "empty", tmp_path, train=str(sample), gold="gsm8k")


MEASURE = """
import resource, sys
from pathlib import Path
from components.contract import default_contract
from components.prepare_dataset.config import DataConfig
from components.prepare_dataset.prepare_dataset import prepare_dataset
from components.storage.store import open_store
model, folder, path = map(Path, sys.argv[1:])
data = DataConfig(train=str(path), validation_rows=100, holdout_rows=100)
prepare_dataset(data, default_contract(), model, open_store(str(folder / "store")), work=folder / "work")
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_rows(model: Path, tmp_path: Path) -> None:
    peaks = []
    for count in (3_000, 30_000):
        path = tmp_path / f"{count}.jsonl"
        with path.open("w", encoding="utf-8") as file:
            for n in range(count):
                text = f"Ann has {n} apples and buys {n % 977} more at the market. How many has she now?"
                file.write(json.dumps({"question": text, "answer": str(n + n % 977)}) + "\n")
        command = [sys.executable, "-c", MEASURE, str(model), str(tmp_path / str(count)), str(path)]
        peaks.append(int(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1]))
    assert peaks[1] <= 1.1 * peaks[0]

"""Sources that are not files of this machine: S3, artifacts, the hub (its client replaced), generated tasks."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from servers import SeaweedServer

from components.contract import default_contract
from components.errors import BadInputError
from components.prepare_dataset.config import DataConfig
from components.prepare_dataset.prepare_dataset import PreparedDataset, prepare_dataset
from components.storage.store import open_store


def prepare(model: Path, folder: Path, **data: object) -> PreparedDataset:
    return prepare_dataset(
        DataConfig.model_validate(data), default_contract(), model, open_store(str(folder / "store")), work=folder / "w"
    )


def test_a_file_and_a_folder_in_s3_are_read_like_local_ones(
    server: SeaweedServer, model: Path, sample: Path, tmp_path: Path
) -> None:
    lines = sample.read_bytes().splitlines(keepends=True)
    client = server.client()
    client.put_object(Bucket="artifacts", Key="data/train/0.jsonl", Body=b"".join(lines[:20]))
    client.put_object(Bucket="artifacts", Key="data/train/1.jsonl", Body=b"".join(lines[20:]))
    client.put_object(Bucket="artifacts", Key="data/all.jsonl", Body=b"".join(lines))
    local = prepare(model, tmp_path, train=str(sample), gold="gsm8k")
    folder = prepare(model, tmp_path, train="s3://artifacts/data/train", gold="gsm8k")
    single = prepare(model, tmp_path, train="s3://artifacts/data/all.jsonl", gold="gsm8k")
    assert local.fingerprint == folder.fingerprint == single.fingerprint


def test_an_object_that_is_not_there_is_refused(server: SeaweedServer, model: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="no object is there"):
        prepare(model, tmp_path, train="s3://artifacts/data/absent.jsonl")


def test_an_artifact_is_read_by_its_reference(model: Path, sample: Path, tmp_path: Path) -> None:
    folder = tmp_path / "rows"
    folder.mkdir()
    (folder / "train.jsonl").write_bytes(sample.read_bytes())
    reference = open_store(str(tmp_path / "store")).put(folder, "inputs/rows", provenance={})
    from_artifact = prepare(model, tmp_path, train=str(reference), gold="gsm8k")
    assert from_artifact.fingerprint == prepare(model, tmp_path, train=str(sample), gold="gsm8k").fingerprint


@pytest.fixture
def hub(sample: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple]:
    """The hub's client, replaced by one that has `openai/gsm8k` at one commit; returns what was asked of it."""
    import datasets
    import huggingface_hub
    from huggingface_hub.errors import RepositoryNotFoundError

    asked: list[tuple] = []
    load = datasets.load_dataset

    class Hub:
        def dataset_info(self, name: str, revision: str | None) -> Any:
            if name != "openai/gsm8k":
                request = httpx.Request("GET", "https://hub.example")
                raise RepositoryNotFoundError("404 not found", response=httpx.Response(404, request=request))
            return SimpleNamespace(sha="a" * 40)

    def load_dataset(name: str, subset: str | None, *, split: str, revision: str) -> Any:
        asked.append((name, subset, split, revision))
        return load("json", data_files={split: str(sample)}, split=split, cache_dir=str(tmp_path / "hf"))

    monkeypatch.setattr(huggingface_hub, "HfApi", Hub)
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return asked


def test_a_hub_dataset_is_read_at_one_commit_and_the_report_says_which(
    hub: list[tuple], model: Path, sample: Path, tmp_path: Path
) -> None:
    source = {"hub": "openai/gsm8k", "name": "main", "split": "train"}
    prepared = prepare(model, tmp_path, train=source, gold="gsm8k")
    assert hub == [("openai/gsm8k", "main", "train", "a" * 40)]
    assert prepared.fingerprint == prepare(model, tmp_path, train=str(sample), gold="gsm8k").fingerprint
    assert prepared.warnings == (f"train: the hub revision is not pinned; write revision: {'a' * 40}",)
    limited = prepare(model, tmp_path, train=source | {"revision": "a" * 40}, gold="gsm8k", limit=10)
    assert sum(limited.counts.values()) == 10
    assert limited.warnings == ()


def test_a_hub_dataset_that_is_not_there_or_lacks_a_column_is_refused(
    hub: list[tuple], model: Path, tmp_path: Path
) -> None:
    with pytest.raises(BadInputError, match=r"data.train.hub: openai/gsm9k \(revision default\) is not on the hub"):
        prepare(model, tmp_path, train={"hub": "openai/gsm9k"})
    with pytest.raises(BadInputError, match="no column 'prompt'"):
        prepare(model, tmp_path, train={"hub": "openai/gsm8k"}, columns={"question": "prompt"})


def test_a_generated_task_gives_the_same_rows_for_the_same_seed(model: Path, tmp_path: Path) -> None:
    pytest.importorskip("reasoning_gym")
    source = {"task": "chain_sum", "seed": 3, "size": 200}
    first = prepare(model, tmp_path, train=source)
    assert sum(first.counts.values()) >= 160
    assert first.fingerprint == prepare(model, tmp_path, train=source).fingerprint
    assert first.fingerprint != prepare(model, tmp_path, train=source | {"seed": 4}).fingerprint
    with pytest.raises(BadInputError, match="'chain_summ' with"):
        prepare(model, tmp_path, train=source | {"task": "chain_summ"})

"""Local inputs travel through the store: what a step elsewhere reads is what this machine had."""

import os

import pytest

from components.errors import BadInputError
from components.storage.store import fetch, open_store
from pipeline.config import build_config
from pipeline.inputs import store_inputs


@pytest.fixture
def config(tmp_path):
    """A config with a model folder, one data file and one data folder of this machine."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (tmp_path / "train.jsonl").write_text('{"question": "1+1?", "answer": "2"}\n')
    rows = tmp_path / "rows"
    rows.mkdir()
    (rows / "a.jsonl").write_text('{"question": "2+2?", "answer": "4"}\n')
    (tmp_path / "extra.jsonl").write_text('{"question": "3+3?", "answer": "6"}\n')

    def build(**model_options):
        return build_config(
            {
                "model": {"source": "model", **model_options},
                "data": {"train": "train.jsonl", "holdout": "rows"},
                "evaluation": {"also": [{"name": "extra", "path": "extra.jsonl"}]},
                "store": {"uri": str(tmp_path / "store")},
            },
            origin="test",
            folder=tmp_path,
        )

    return build


def test_files_and_folders_are_stored_and_named_by_reference(config, tmp_path):
    before = config()
    after = store_inputs(before, open_store(before.store))
    train = fetch(after.data.train.path) / "train.jsonl"
    assert train.read_text() == (tmp_path / "train.jsonl").read_text()
    assert (fetch(after.data.holdout.path) / "a.jsonl").exists()
    assert (fetch(after.evaluation.also[0].path) / "extra.jsonl").exists()
    assert after.model.source.startswith("file://")
    assert after.data.local_files() == []
    assert str(tmp_path / "train.jsonl") not in after.to_json()


def test_the_same_inputs_again_are_the_same_references(config):
    before = config()
    store = open_store(before.store)
    assert store_inputs(before, store) == store_inputs(before, store)
    assert len(store.keys("inputs")) == 4


def test_a_gguf_file_is_named_within_its_artifact(config, tmp_path):
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    before = config(source=str(tmp_path / "m.gguf"))
    after = store_inputs(before, open_store(before.store))
    assert after.model.source.endswith("/m.gguf")
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".grpo-input")]


def test_weights_used_in_place_are_refused_with_the_mend(config):
    before = config(mirror=False)
    with pytest.raises(BadInputError, match="mirror: true"):
        store_inputs(before, open_store(before.store))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_file_in_a_folder_that_cannot_be_written_is_stored_too(config, tmp_path):
    locked = tmp_path / "locked"
    locked.mkdir()
    (tmp_path / "train.jsonl").rename(locked / "train.jsonl")
    locked.chmod(0o500)
    before = config()
    data = before.data.model_copy(
        update={"train": before.data.train.model_copy(update={"path": str(locked / "train.jsonl")})}
    )
    after = store_inputs(before.model_copy(update={"data": data}), open_store(before.store))
    assert (fetch(after.data.train.path) / "train.jsonl").exists()

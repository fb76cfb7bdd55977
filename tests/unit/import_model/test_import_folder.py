"""A model folder into a store: once, whole, or in place."""

import errno
import json
import os
import shutil
from pathlib import Path

import pytest

from components.errors import BadInputError
from components.import_model.config import ModelConfig
from components.import_model.import_model import import_model
from components.storage.manifest import DamagedArtifactError
from components.storage.store import fetch, open_store


@pytest.fixture
def store(tmp_path: Path):
    return open_store(str(tmp_path / "store"))


@pytest.fixture
def work(tmp_path: Path) -> Path:
    return tmp_path / "work"


def test_the_model_is_there_with_its_provenance_and_nothing_is_left_in_the_work_folder(make_model, store, work) -> None:
    source = make_model(README__md="---\nlicense: mit\n---\n")
    (source / "optimizer.pt").write_bytes(b"x")
    found = import_model(ModelConfig(source=str(source)), store, work=work)
    assert not found.reused
    folder = fetch(found.reference)
    assert not (folder / "optimizer.pt").exists()
    assert (folder / "model.safetensors").read_bytes() == (source / "model.safetensors").read_bytes()
    assert store.read_manifest(found.reference).provenance == found.provenance
    assert found.provenance == {
        "kind": "model",
        "source": str(source),
        "revision": None,
        "licence": "mit",
        "format": "safetensors",
        "converted_from": None,
        "architecture": "llama",
        "parameters": 6,
        "dtypes": ["F32"],
        "chat_template": "own",
        "tokenizer": {"eos_token": "</s>", "pad_token": "<pad>", "padding_side": "right"},
    }
    assert list(work.iterdir()) == []


def test_a_second_run_copies_nothing_also_from_another_folder(make_model, store, work, monkeypatch) -> None:
    source = make_model()
    first = import_model(ModelConfig(source=str(source)), store, work=work)
    elsewhere = source.with_name("elsewhere")
    shutil.copytree(source, elsewhere)
    monkeypatch.setattr(shutil, "copyfile", lambda *_: pytest.fail("copied"))
    for folder in (source, elsewhere):
        again = import_model(ModelConfig(source=str(folder)), store, work=work)
        assert again.reused
        assert again.reference == first.reference
        assert again.provenance == first.provenance


def test_settings_of_training_do_not_make_another_model_and_content_does(make_model, store, work) -> None:
    source = make_model()
    first = import_model(ModelConfig(source=str(source)), store, work=work).reference
    same = ModelConfig(source=str(source), dtype="bfloat16", attention="sdpa", backend="unsloth")
    assert import_model(same, store, work=work).reference == first
    licensed = import_model(ModelConfig(source=str(source), licence="mine"), store, work=work)
    assert licensed.provenance["licence"] == "mine"
    assert licensed.reference != first
    (source / "generation_config.json").write_text("{}")
    assert import_model(ModelConfig(source=str(source)), store, work=work).reference != first


def test_a_given_template_takes_the_place_of_the_models_own(make_model, store, work) -> None:
    source = make_model()
    template = "{% for message in messages %}<{{ message['content'] }}>{% endfor %}"
    found = import_model(ModelConfig(source=str(source), chat_template=template), store, work=work)
    assert (fetch(found.reference) / "chat_template.jinja").read_text() == template
    assert found.provenance["chat_template"] == "given"
    assert "<" not in (source / "chat_template.jinja").read_text()


def test_a_given_template_serves_where_there_is_none(make_model, store, work) -> None:
    source = make_model(chat_template__jinja=None)
    with pytest.raises(BadInputError, match="has no chat template"):
        import_model(ModelConfig(source=str(source)), store, work=work)
    import_model(ModelConfig(source=str(source), chat_template="{{ messages }}"), store, work=work)


def test_in_place_nothing_is_copied_and_changes_are_found(make_model, store, work) -> None:
    source = make_model()
    config = ModelConfig(source=str(source), mirror=False)
    found = import_model(config, store, work=work)
    assert fetch(found.reference) == source
    assert [path.name for path in (store.root / "models").rglob("*") if path.is_file()] == ["manifest.json"]
    assert import_model(config, store, work=work).reused
    (source / "model.safetensors").write_bytes((source / "model.safetensors").read_bytes()[:-1] + b"\1")
    with pytest.raises(DamagedArtifactError, match=r"model\.safetensors.*model\.mirror: true"):
        fetch(found.reference)
    assert import_model(config, store, work=work).reference != found.reference


def test_mirrored_and_in_place_are_two_artifacts(make_model, store, work) -> None:
    source = make_model()
    mirrored = import_model(ModelConfig(source=str(source)), store, work=work).reference
    assert import_model(ModelConfig(source=str(source), mirror=False), store, work=work).reference != mirrored


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"config__json": None}, "has no config.json"),
        ({"model__safetensors": None}, "has no weights"),
        ({"tokenizer__json": None}, "has no tokenizer"),
        ({"model__safetensors": b"\x10\0\0\0\0\0\0\0{"}, "no complete safetensors file"),
        ({"model__safetensors": None, "pytorch_model__bin": b"x"}, r"model\.allow_pickle: true"),
    ],
)
def test_bad_folders_are_refused_and_nothing_is_left_behind(make_model, store, work, changes, says: str) -> None:
    source = make_model(**changes)
    with pytest.raises(BadInputError, match=says):
        import_model(ModelConfig(source=str(source)), store, work=work)
    assert store.keys() == []
    assert not work.exists() or list(work.iterdir()) == []


def test_no_space_and_no_right_are_bad_input_and_leave_nothing(make_model, store, work, monkeypatch) -> None:
    source = make_model()

    def fail(number: int):
        def copy(_source: Path, target: Path) -> None:
            raise OSError(number, os.strerror(number), str(target))

        return copy

    for number, says in ((errno.ENOSPC, "no space left"), (errno.EACCES, "may not be written"), (errno.EROFS, "right")):
        monkeypatch.setattr(shutil, "copyfile", fail(number))
        with pytest.raises(BadInputError, match=says):
            import_model(ModelConfig(source=str(source)), store, work=work)
        assert [path for path in store.root.rglob("*") if path.is_file()] == []


def test_a_revision_of_a_folder_is_refused(make_model, store, work) -> None:
    with pytest.raises(BadInputError, match="revision applies to hub ids"):
        import_model(ModelConfig(source=str(make_model()), revision="main"), store, work=work)


def test_a_template_that_is_no_jinja_is_refused_before_the_source_is_read(store, work) -> None:
    with pytest.raises(BadInputError, match="not valid Jinja"):
        import_model(ModelConfig(source="org/name", chat_template="{{ messages"), store, work=work)


def test_unrelated_links_and_folders_beside_the_model_do_not_matter(make_model, store, work) -> None:
    source = make_model()
    (source / ".git").mkdir()
    (source / "checkpoints").symlink_to(source.parent)
    (source / "gone.txt").symlink_to("nowhere")
    found = import_model(ModelConfig(source=str(source)), store, work=work)
    assert "gone.txt" not in json.dumps([entry.path for entry in store.read_manifest(found.reference).files])

"""The model section: what a source may be, and how paths become absolute."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from components.errors import BadInputError
from components.import_model.config import ModelConfig


@pytest.mark.parametrize("source", ["Qwen/Qwen2.5-1.5B-Instruct", "gpt2", "s3://bucket/models/x", "/abs/model.gguf"])
def test_sources_that_are_accepted(source: str) -> None:
    assert ModelConfig(source=source).source == source


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"source": " "}, "source is empty"),
        ({"source": "https://huggingface.co/org/name"}, "write its hub id 'org/name'"),
        ({"source": "huggingface.co/org/name/tree/main"}, "write its hub id 'org/name'"),
        ({"source": "gs://bucket/x"}, "neither a hub id, a folder"),
        ({"source": "s3://bucket/x", "revision": "main"}, "remove it"),
        ({"source": "x.gguf", "mirror": False}, "write mirror: true"),
        ({"source": "s3://bucket/x", "mirror": False}, "write mirror: true"),
        ({"source": "./x", "mirror": False, "chat_template": "{{ messages }}"}, "write mirror: true"),
        ({"source": "x/y", "dtype": "fp16"}, "Input should be"),
    ],
)
def test_what_cannot_be_is_refused_with_the_mend(values: dict[str, object], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        ModelConfig.model_validate(values)


def test_a_relative_folder_that_exists_wins_over_a_hub_id_of_the_same_form(tmp_path: Path) -> None:
    config = ModelConfig(source="quickstart/model")
    assert config.with_paths_against(tmp_path).source == "quickstart/model"
    (tmp_path / "quickstart" / "model").mkdir(parents=True)
    found = config.with_paths_against(tmp_path)
    assert found.source == str(tmp_path / "quickstart" / "model")
    assert found.kind() == "folder"
    assert found.local_files() == [tmp_path / "quickstart" / "model"]


def test_a_path_to_nothing_is_told_with_what_may_be_meant(tmp_path: Path) -> None:
    (tmp_path / "smollm2.gguf").write_bytes(b"")
    config = ModelConfig(source="./smolm2.gguf").with_paths_against(tmp_path)
    with pytest.raises(BadInputError, match=r"does not exist; was .*smollm2\.gguf meant"):
        config.local_files()
    with pytest.raises(BadInputError, match="name a folder"):
        ModelConfig(source="/nowhere/at/all").local_files()
    (tmp_path / "notes.md").write_text("")
    with pytest.raises(BadInputError, match=r"is a file and no \.gguf"):
        ModelConfig(source=str(tmp_path / "notes.md")).local_files()


def test_hub_ids_and_uris_are_no_local_files() -> None:
    assert ModelConfig(source="org/name-1.5B").local_files() == []
    assert ModelConfig(source="s3://bucket/x").local_files() == []


def test_a_template_file_is_replaced_by_its_text_and_a_template_stays(tmp_path: Path) -> None:
    (tmp_path / "chat.jinja").write_text("{{ messages }}")
    assert ModelConfig(source="a/b", chat_template="chat.jinja").with_paths_against(tmp_path).chat_template == (
        "{{ messages }}"
    )
    inline = ModelConfig(source="a/b", chat_template="{{ messages[0] }}")
    assert inline.with_paths_against(tmp_path) == inline
    with pytest.raises(BadInputError, match="neither a template nor a file"):
        ModelConfig(source="a/b", chat_template="none.jinja").with_paths_against(tmp_path)

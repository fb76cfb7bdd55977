"""What is taken over from the base model beside the weights, and which base an adapter may be merged into."""

import json
from pathlib import Path
from typing import Any

import pytest

from components.errors import BadInputError
from components.merge_lora.carrying import carry_files, read_config, write_config
from components.merge_lora.merge import check_base
from components.merge_lora.template import Opening

OPENING = Opening(messages=({"role": "system", "content": "Answer."},))


@pytest.fixture
def base(tmp_path: Path) -> Path:
    directory = tmp_path / "base"
    (directory / "additional_chat_templates").mkdir(parents=True)
    (directory / "checkpoint-5").mkdir()
    for name in (
        "tokenizer.json",
        "generation_config.json",
        "special_tokens_map.json",
        "vocab.txt",
        "tokenizer.model",
        "modeling_own.py",
        "chat_template.jinja",
        "additional_chat_templates/rag.jinja",
        "LICENSE",
        "README.md",
        "manifest.json",
        "model.safetensors",
        "model.safetensors.index.json",
        "pytorch_model.bin",
        "training.json",
        ".gitattributes",
        "checkpoint-5/trainer_state.json",
    ):
        (directory / name).write_text(f"content of {name}")
    (directory / "config.json").write_text(json.dumps({"dtype": "bfloat16", "tie_word_embeddings": True}))
    return directory


def test_all_that_belongs_to_the_model_is_carried_over_unchanged(base: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    report = carry_files(base, out, OPENING)
    carried = {"tokenizer.json", "generation_config.json", "special_tokens_map.json", "vocab.txt", "tokenizer.model"}
    carried |= {"modeling_own.py", "LICENSE", "config.json"}
    assert set(report["carried"]) == carried
    assert set(report["changed"]) == {"chat_template.jinja", "additional_chat_templates/rag.jinja"}
    assert {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()} == carried | set(
        report["changed"]
    )
    for name in carried:
        assert (out / name).read_bytes() == (base / name).read_bytes()
    for name in report["changed"]:
        assert (out / name).read_text().endswith(f"\n{(base / name).read_text()}")


def test_without_an_opening_every_file_stays_as_it_was(base: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    assert carry_files(base, out, Opening())["changed"] == {}


def test_base_without_a_chat_template_is_refused_only_when_one_is_needed(base: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (base / "chat_template.jinja").unlink()
    (base / "additional_chat_templates" / "rag.jinja").unlink()
    with pytest.raises(BadInputError, match="no chat template"):
        carry_files(base, out, OPENING)
    carry_files(base, out, Opening())


@pytest.mark.parametrize(
    ("before", "changes", "after"),
    [
        ({"dtype": "bfloat16"}, {"dtype": "float32"}, {"dtype": "float32"}),
        ({"torch_dtype": "bfloat16"}, {"dtype": "float32"}, {"torch_dtype": "float32"}),
        ({"hidden_size": 4}, {"dtype": "float16"}, {"hidden_size": 4, "dtype": "float16"}),
        ({"hidden_size": 4}, {"untied": True}, {"hidden_size": 4, "tie_word_embeddings": False}),
        (
            {"text_config": {"dtype": "bfloat16", "tie_word_embeddings": True}},
            {"dtype": "float32", "untied": True},
            {
                "text_config": {"dtype": "float32", "tie_word_embeddings": False},
                "dtype": "float32",
                "tie_word_embeddings": False,
            },
        ),
        ({"dtype": "bfloat16"}, {}, None),
    ],
)
def test_config_says_what_the_merge_changed(
    before: dict[str, Any], changes: dict[str, Any], after: dict[str, Any] | None, tmp_path: Path
) -> None:
    (tmp_path / "base").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "base" / "config.json").write_text(json.dumps(before))
    write_config(tmp_path / "base", tmp_path / "out", **{"dtype": "base", "untied": False} | changes)
    written = tmp_path / "out" / "config.json"
    assert (json.loads(written.read_text()) if written.exists() else None) == after


def test_quantised_base_is_refused_with_the_mend(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": {"quant_method": "bitsandbytes"}}))
    with pytest.raises(BadInputError, match=r"bitsandbytes.*16-bit model.*model\.source"):
        read_config(tmp_path)


def record(directory: Path, name: str, section: str, digest: str) -> None:
    (directory / name).write_text(json.dumps({section: {"base": f"file:///store/models/x@sha256:{digest}"}}))


def test_adapter_of_the_same_base_is_accepted(tmp_path: Path) -> None:
    record(tmp_path, "manifest.json", "provenance", "a" * 64)
    record(tmp_path, "training.json", "settings", "a" * 64)
    check_base(tmp_path, "a" * 64)


@pytest.mark.parametrize(("name", "section"), [("manifest.json", "provenance"), ("training.json", "settings")])
def test_adapter_of_another_base_is_refused(name: str, section: str, tmp_path: Path) -> None:
    record(tmp_path, name, section, "b" * 64)
    with pytest.raises(BadInputError, match=f"{name}: the adapter was trained on base model {'b' * 12}"):
        check_base(tmp_path, "a" * 64)


def test_adapter_that_does_not_name_its_base_is_refused(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text(json.dumps({"provenance": {}}))
    with pytest.raises(BadInputError, match="does not say which base model"):
        check_base(tmp_path, "a" * 64)

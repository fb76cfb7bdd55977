"""Which files make a model, by their names alone."""

import pytest

from components.errors import BadInputError
from components.import_model.selection import Selection, select_files

REPOSITORY = [
    ".gitattributes",
    "README.md",
    "LICENSE",
    "config.json",
    "generation_config.json",
    "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "additional_chat_templates/tool.jinja",
    "modeling_custom.py",
    "training_args.bin",
    "trainer_state.json",
    "onnx/model.onnx",
    "original/consolidated.00.pth",
    "manifest.json",
]


def _select(names: list[str], **options: bool) -> Selection:
    given = {"allow_pickle": False, "trust_remote_code": False, "has_template": False, **options}
    return select_files(names, "it", **given)


def test_a_repository_is_cut_down_to_one_format_without_code_and_leftovers() -> None:
    found = _select(REPOSITORY)
    assert found.format == "safetensors"
    assert found.weights == ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    left_out = set(REPOSITORY) - set(found.files)
    assert left_out == {
        ".gitattributes",
        "pytorch_model.bin",
        "pytorch_model.bin.index.json",
        "modeling_custom.py",
        "training_args.bin",
        "trainer_state.json",
        "onnx/model.onnx",
        "original/consolidated.00.pth",
        "manifest.json",
    }


def test_code_comes_only_when_it_is_trusted_and_own_templates_only_when_none_is_given() -> None:
    assert "modeling_custom.py" in _select(REPOSITORY, trust_remote_code=True).files
    given = _select(REPOSITORY, has_template=True).files
    assert not [name for name in given if name.endswith(".jinja")]


def test_pickle_weights_are_taken_only_when_allowed() -> None:
    names = ["config.json", "tokenizer.json", "pytorch_model.bin", "training_args.bin", "optimizer.pt"]
    with pytest.raises(BadInputError, match=r"pickle \(pytorch_model\.bin\).*model\.allow_pickle: true"):
        _select(names)
    found = _select(names, allow_pickle=True)
    assert (found.format, found.weights) == ("pickle", ("pytorch_model.bin",))
    assert "training_args.bin" not in found.files


@pytest.mark.parametrize(
    ("names", "says"),
    [
        ([], "has no config.json"),
        (["config.json", "tokenizer.json"], "has no weights"),
        (["config.json", "tokenizer.json", "training_args.bin"], "has no weights"),
        (["config.json", "model.safetensors"], "has no tokenizer"),
        (["model.safetensors", "tokenizer.json"], "has no config.json"),
        (["adapter_config.json", "adapter_model.safetensors"], "is a LoRA adapter"),
        (["a.Q4.gguf"], "name the .gguf file itself"),
        (["config.json", "a.Q4.gguf", "tokenizer.json"], r"holds GGUF; name the file itself \(a\.Q4\.gguf\)"),
        (["config.json", "tokenizer.json", "adapter_model.safetensors"], "has no weights"),
    ],
)
def test_what_no_model_can_be_made_of_is_refused_with_the_reason(names: list[str], says: str) -> None:
    with pytest.raises(BadInputError, match=says):
        _select(names, allow_pickle=True)

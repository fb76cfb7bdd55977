"""What is checked and recorded of a model folder."""

import json
import struct
from pathlib import Path

import numpy
import pytest
from safetensors.numpy import save_file

from components.errors import BadInputError
from components.import_model.inspection import check_template, inspect_model, read_licence

ONE = ("model.safetensors",)


def test_facts_come_from_headers_and_the_tokenizers_own_settings(make_model) -> None:
    facts = inspect_model(make_model(), ONE, "it")
    assert (facts.architecture, facts.parameters, facts.dtypes) == ("llama", 6, ["F32"])
    assert facts.tokenizer == {"eos_token": "</s>", "pad_token": "<pad>", "padding_side": "right"}
    assert facts.licence == "unknown"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"config__json": "{"}, r"config\.json cannot be read as JSON"),
        ({"config__json": "[]"}, r"config\.json holds no JSON object"),
        ({"config__json": "{}"}, "names no model_type"),
        ({"chat_template__jinja": None}, r"has no chat template.*model\.chat_template:"),
        ({"model__safetensors": b""}, r"model\.safetensors is no complete safetensors file"),
        ({"model__safetensors": struct.pack("<Q", 1000) + b"{"}, r"model\.safetensors is no complete safetensors file"),
        ({"tokenizer_config__json": "nonsense"}, r"tokenizer_config\.json cannot be read"),
    ],
)
def test_each_fault_names_its_file(make_model, changes: dict[str, str | bytes | None], says: str) -> None:
    with pytest.raises(BadInputError, match=says):
        inspect_model(make_model(**changes), ONE, "it")


def test_weights_cut_off_at_any_place_are_found(make_model) -> None:
    folder = make_model()
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    for length in (4, 8, 20, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(BadInputError, match="download it again"):
            inspect_model(folder, ONE, "it")


def test_a_template_inside_the_tokenizer_config_counts(make_model) -> None:
    settings = json.dumps({"chat_template": "{{ messages }}"})
    inspect_model(make_model(chat_template__jinja=None, tokenizer_config__json=settings), ONE, "it")


def _shard(folder: Path, weight_map: dict[str, str]) -> tuple[str, ...]:
    (folder / "model.safetensors").unlink()
    names = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    for number, name in enumerate(names):
        save_file({f"w{number}": numpy.zeros(2, numpy.float16)}, folder / name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return names


def test_shards_are_compared_with_their_index(make_model) -> None:
    good = {"w0": "model-00001-of-00002.safetensors", "w1": "model-00002-of-00002.safetensors"}
    folder = make_model("good")
    assert inspect_model(folder, _shard(folder, good), "it").parameters == 4
    folder = make_model("swapped")
    weights = _shard(folder, {"w0": good["w1"], "w1": good["w0"]})
    with pytest.raises(BadInputError, match="lacks the weight w0"):
        inspect_model(folder, weights, "it")
    folder = make_model("missing")
    weights = _shard(folder, {**good, "w2": "model-00003-of-00003.safetensors"})
    with pytest.raises(BadInputError, match=r"lacks model-00003-of-00003\.safetensors"):
        inspect_model(folder, weights, "it")
    folder = make_model("no-index")
    weights = _shard(folder, good)
    (folder / "model.safetensors.index.json").unlink()
    with pytest.raises(BadInputError, match="2 weight files and no"):
        inspect_model(folder, weights, "it")


@pytest.mark.parametrize(
    ("files", "licence"),
    [
        ({"README.md": "---\nlicense: apache-2.0\n---\n# Model"}, "apache-2.0"),
        ({"README.md": "---\nlicense: other\nlicense_name: qwen-research\n---\n"}, "qwen-research"),
        ({"README.md": "---\nlicense: [a, b\n---\n", "LICENSE": "MIT License\n\nCopyright"}, "mit"),
        ({"README.md": "no front matter", "LICENSE.txt": "  Apache License\n  Version 2.0, January"}, "apache-2.0"),
        ({"LICENSE": "Our Very Own Terms\nmore"}, "Our Very Own Terms"),
        ({}, "unknown"),
    ],
)
def test_the_licence_is_what_the_models_files_say(tmp_path: Path, files: dict[str, str], licence: str) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    assert read_licence(tmp_path, {}) == licence


def test_the_configs_licence_comes_before_the_licence_file(tmp_path: Path) -> None:
    (tmp_path / "LICENSE").write_text("MIT License")
    assert read_licence(tmp_path, {"license": "cc-by-4.0"}) == "cc-by-4.0"


def test_templates_are_checked_before_anything_is_imported() -> None:
    check_template("{% for m in messages %}{% generation %}{{ m }}{% endgeneration %}{% break %}{% endfor %}")
    with pytest.raises(BadInputError, match="line 2 is not valid Jinja"):
        check_template("{{ messages }}\n{% for %}")
    with pytest.raises(BadInputError, match="never uses `messages`"):
        check_template("Answer: {{ question }}")

"""A tiny model folder: config, tokenizer, template and one safetensors file, made without torch."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest
from safetensors.numpy import save_file


@pytest.fixture
def make_model(tmp_path: Path) -> Callable[..., Path]:
    """Makes a model folder; files given as None are left out, others replace the usual ones."""

    def make(name: str = "model", **changes: str | bytes | None) -> Path:
        folder = tmp_path / name
        folder.mkdir(parents=True)
        files: dict[str, str | bytes | None] = {
            "config.json": json.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}),
            "tokenizer.json": "{}",
            "tokenizer_config.json": json.dumps(
                {"eos_token": {"content": "</s>", "special": True}, "pad_token": "<pad>", "padding_side": "right"}
            ),
            "chat_template.jinja": "{% for message in messages %}{{ message['content'] }}{% endfor %}",
        }
        save_file({"a": numpy.zeros((2, 3), numpy.float32)}, folder / "model.safetensors")
        for path, content in {**files, **{key.replace("__", "."): value for key, value in changes.items()}}.items():
            if content is None:
                (folder / path).unlink(missing_ok=True)
            elif isinstance(content, bytes):
                (folder / path).write_bytes(content)
            else:
                (folder / path).write_text(content)
        return folder

    return make

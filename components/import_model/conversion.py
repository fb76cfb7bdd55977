"""Makes safetensors of what is kept otherwise: a GGUF file (dequantised), pickle weights.

Called once for a source; the result is kept in the store. Imports torch and transformers; nothing else in this step
does. Refuses: a pickle that holds anything but tensors (no code in it is run), a GGUF of an architecture that
transformers cannot read.
"""

import importlib.util
import json
import pickle
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from components.errors import BadInputError
from components.storage.disk import disk_errors

_INDEX = "model.safetensors.index.json"
_PICKLE_INDEX = "pytorch_model.bin.index.json"
_SHARD = "5GB"
_SPECIAL_TOKENS = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding", "unk_token": "unknown"}


@dataclass(frozen=True)
class GgufFacts:
    """What a GGUF file says of itself.

    Attributes:
        architecture: such as `llama`.
        licence: as stated, or None.
        name: as stated, or None.
        special_tokens: id by transformers' name of the token.
    """

    architecture: str
    licence: str | None
    name: str | None
    special_tokens: dict[str, int]


def read_gguf(path: Path) -> GgufFacts:
    """Read the head of a GGUF file.

    Raises:
        BadInputError: when it is no GGUF file, or cut off.
    """
    _require_torch(path)
    from transformers.integrations.gguf.reader import read_gguf_metadata

    try:
        metadata, _tensors = read_gguf_metadata(str(path))
    except (ValueError, struct.error, IndexError, UnicodeDecodeError) as error:
        raise BadInputError(f"model.source: {path} is no complete GGUF file ({error}); download it again") from error
    ids = {name: metadata.get(f"tokenizer.ggml.{key}_token_id") for name, key in _SPECIAL_TOKENS.items()}
    return GgufFacts(
        architecture=str(metadata["general.architecture"]),
        licence=metadata.get("general.license"),
        name=metadata.get("general.name"),
        special_tokens={name: int(number) for name, number in ids.items() if number is not None},
    )


def convert_gguf(path: Path, target: Path, *, dtype: str, special_tokens: dict[str, int]) -> None:
    """Write a GGUF file as a transformers folder with dense safetensors weights.

    Args:
        path: the .gguf file.
        target: folder to write; must not exist.
        dtype: float32, bfloat16 or float16: precision of the written weights.
        special_tokens: ids by name, from `read_gguf`: transformers 5.17 loses eos and pad of a GGUF tokenizer.

    Raises:
        BadInputError: transformers cannot read the file, or no space is left.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GgufConfig

    where = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    try:
        config = AutoConfig.from_pretrained(**where)
        tokenizer = AutoTokenizer.from_pretrained(**where)
        model = AutoModelForCausalLM.from_pretrained(
            **where,
            config=config,
            dtype=getattr(torch, dtype),
            # Without it the weights stay in GGUF blocks, which can be neither saved nor trained.
            quantization_config=GgufConfig(dequantize=True),
        )
    except (ValueError, TypeError, KeyError, NotImplementedError, struct.error, IndexError) as error:
        raise BadInputError(
            f"model.source: transformers cannot read {path} ({type(error).__name__}: {error}); use the model's "
            "safetensors version"
        ) from error
    for name, number in special_tokens.items():
        setattr(tokenizer, name, tokenizer.convert_ids_to_tokens(number))
    with disk_errors(target):
        target.mkdir(parents=True)
        _saving(target, partial(model.save_pretrained, target, max_shard_size=_SHARD))
        tokenizer.save_pretrained(target)


def convert_pickles(folder: Path, weights: tuple[str, ...], target: Path) -> tuple[str, ...]:
    """Write pickle weights as safetensors files, one for one, with their index.

    Args:
        folder: where the pickle files are.
        weights: their names.
        target: existing folder to write to.

    Returns:
        Names of the written weight files.

    Raises:
        BadInputError: a file holds other things than tensors, or no space is left.
    """
    _require_torch(folder)
    import torch
    from safetensors.torch import save_file

    names = {name: _safetensors_name(name, len(weights)) for name in weights}
    for name, new_name in names.items():
        try:
            content = torch.load(folder / name, map_location="cpu", weights_only=True, mmap=True)
        except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
            first = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise BadInputError(
                f"model.source: {folder / name} could not be loaded without running code in it ({first}); use a "
                "version with .safetensors"
            ) from error
        tensors = _tensors(content, folder / name)
        with disk_errors(target):
            _saving(target, partial(save_file, tensors, target / new_name, metadata={"format": "pt"}))
    index = folder / _PICKLE_INDEX
    if index.exists():
        placed = json.loads(index.read_text(encoding="utf-8"))
        placed["weight_map"] = {key: names.get(name, name) for key, name in placed["weight_map"].items()}
        (target / _INDEX).write_text(json.dumps(placed, indent=2, sort_keys=True), encoding="utf-8")
    return tuple(sorted(names.values()))


def _require_torch(source: Path) -> None:
    if importlib.util.find_spec("torch") is None:
        raise BadInputError(
            f"model.source: {source} must be converted to safetensors, which needs torch, which is not here; "
            "run import_model with the train image (or install the extra `train`), or use a safetensors version"
        )


def _tensors(content: Any, path: Path) -> dict[str, Any]:
    import torch

    if not isinstance(content, dict) or not all(isinstance(value, torch.Tensor) for value in content.values()):
        raise BadInputError(
            f"model.source: {path} holds other things than weights by name (perhaps a training checkpoint); save the "
            "model's state_dict alone, or with save_pretrained"
        )
    # Two names of one tensor (tied embeddings) are written twice: safetensors refuses shared memory.
    return {key: value.clone().contiguous() for key, value in content.items()}


def _safetensors_name(name: str, count: int) -> str:
    stem = name.rpartition(".")[0].replace("pytorch_model", "model")
    return "model.safetensors" if count == 1 else f"{stem}.safetensors"


def _saving(target: Path, save: Callable[[], Any]) -> None:
    from safetensors import SafetensorError

    try:
        save()
    except SafetensorError as error:
        if "os error 28" in str(error) or "No space left" in str(error):
            raise OSError(28, "No space left on device", str(target)) from error
        raise

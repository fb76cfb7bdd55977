"""Which files of a model repository or folder make the model, judged by their names alone.

Called before anything is read or downloaded, for every kind of source, so that a folder without weights is refused in
a moment and a hub repository's other formats are never fetched. Takes: config and tokenizer files, safetensors weights,
chat templates, licence and model card. Refuses: no config, no weights, an adapter, GGUF among others, pickle weights
unless they may be converted.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal

from components.errors import BadInputError

TEMPLATE_FILE = "chat_template.jinja"
_TEMPLATE_FOLDER = "additional_chat_templates/"
_SUFFIXES = (".json", ".jinja", ".model", ".tiktoken", ".txt", ".md")
_PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt")
_NOT_WEIGHTS = ("training_args.bin", "optimizer.pt", "optimizer.bin", "scheduler.pt", "rng_state.pth", "scaler.pt")
_NOT_THE_MODEL = ("manifest.json", "trainer_state.json")
_TOKENIZERS = (
    "tokenizer.json",
    "tokenizer.model",
    "spiece.model",
    "vocab.json",
    "vocab.txt",
    "sentencepiece.bpe.model",
    "qwen.tiktoken",
)


@dataclass(frozen=True)
class Selection:
    """The files that make a model.

    Attributes:
        files: relative paths, sorted.
        weights: those of them that hold weights.
        format: how the weights are kept.
    """

    files: tuple[str, ...]
    weights: tuple[str, ...]
    format: Literal["safetensors", "pickle"]


def select_files(
    names: Iterable[str], where: str, *, allow_pickle: bool, trust_remote_code: bool, has_template: bool
) -> Selection:
    """Choose the files of a model.

    Args:
        names: relative paths of all files there, with forward slashes.
        where: what to call the source in messages.
        allow_pickle: whether pickle weights may be taken when there are no others.
        trust_remote_code: whether Python files are taken.
        has_template: whether a chat template was given, so that files that may hold one are not missed.

    Raises:
        BadInputError: when no model can be made of them.
    """
    top = [name for name in names if "/" not in name or name.startswith(_TEMPLATE_FOLDER)]
    if "config.json" not in top:
        raise BadInputError(f"model.source: {where} {_without_config(top)}")
    safetensors = [name for name in top if name.endswith(".safetensors") and not name.startswith("adapter_")]
    pickles = [name for name in top if _is_pickle(name)]
    if not safetensors and pickles and not allow_pickle:
        raise BadInputError(
            f"model.source: {where} has its weights as pickle ({pickles[0]}), which can run code when it is loaded; "
            "use a version with .safetensors, or write model.allow_pickle: true: they are converted, no code is run"
        )
    if not safetensors and not pickles:
        raise BadInputError(f"model.source: {where} {_without_weights(top)}")
    if not any(name in _TOKENIZERS for name in top):
        raise BadInputError(
            f"model.source: {where} has no tokenizer (tokenizer.json, tokenizer.model, vocab.json or the like); add "
            "the tokenizer's files"
        )
    weights = safetensors or pickles
    chosen = {
        name
        for name in top
        if name not in _NOT_THE_MODEL
        and (name.endswith(_SUFFIXES) or _is_licence(name) or (trust_remote_code and name.endswith(".py")))
        and not (safetensors and name.endswith((".bin.index.json", ".h5.index.json")))
        and not (has_template and _holds_template(name))
    }
    return Selection(
        tuple(sorted(chosen.union(weights))), tuple(sorted(weights)), "safetensors" if safetensors else "pickle"
    )


def _is_pickle(name: str) -> bool:
    return name.endswith(_PICKLE_SUFFIXES) and name not in _NOT_WEIGHTS and not name.startswith("adapter_")


def _is_licence(name: str) -> bool:
    return PurePosixPath(name).name.upper().startswith(("LICENSE", "LICENCE", "COPYING", "NOTICE"))


def _holds_template(name: str) -> bool:
    """Files that transformers would read a chat template from, in place of the given one."""
    return name.endswith(".jinja") or name == "chat_template.json"


def _without_config(names: list[str]) -> str:
    if any(name.endswith(".gguf") for name in names):
        return "has no config.json and holds GGUF; name the .gguf file itself"
    if "adapter_config.json" in names:
        return "is a LoRA adapter without its base model; merge the two first, or name the base model"
    return "has no config.json; name the folder that transformers' save_pretrained wrote"


def _without_weights(names: list[str]) -> str:
    gguf = [name for name in names if name.endswith(".gguf")]
    if gguf:
        return f"has no safetensors weights and holds GGUF; name the file itself ({gguf[0]})"
    return "has no weights (model.safetensors, or model-00001-of-0000N.safetensors with their index); add them"

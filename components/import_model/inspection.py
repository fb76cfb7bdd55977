"""What a folder of model files is: checked, and described for the manifest.

Called on the folder that is about to be stored (and on one used in place). Reads JSON files and the headers of the
safetensors files, never the weights themselves, and imports neither torch nor transformers. Refuses: a config that is
no model's, a truncated or damaged safetensors file, shards that do not match their index, a missing chat template.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from jinja2 import TemplateSyntaxError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from safetensors import SafetensorError, safe_open

from components.errors import BadInputError
from components.import_model.selection import TEMPLATE_FILE

_INDEX = "model.safetensors.index.json"
_RECORDED = ("bos_token", "eos_token", "pad_token", "unk_token", "padding_side", "model_max_length")
_LICENCE_TEXTS = (
    (r"Apache License\s+Version 2\.0", "apache-2.0"),
    (r"MIT License|Permission is hereby granted, free of charge", "mit"),
    (r"GNU GENERAL PUBLIC LICENSE\s+Version 3", "gpl-3.0"),
    (r"Redistribution and use in source and binary forms", "bsd"),
    (r"LLAMA[\w .]* COMMUNITY LICENSE", "llama"),
    (r"Gemma Terms of Use", "gemma"),
)
UNKNOWN = "unknown"


@dataclass(frozen=True)
class ModelFacts:
    """What the manifest says of a model beside its source.

    Attributes:
        architecture: the config's `model_type`.
        parameters: numbers in all weights together.
        dtypes: how they are kept, sorted, such as ["BF16"].
        tokenizer: special tokens and padding as the model's own files have them; nothing here is overridden.
        licence: as its files say, or `unknown`.
    """

    architecture: str
    parameters: int
    dtypes: list[str]
    tokenizer: dict[str, Any]
    licence: str


def inspect_model(folder: Path, weights: tuple[str, ...], where: str) -> ModelFacts:
    """Check a model folder and describe it.

    Args:
        folder: the folder.
        weights: its safetensors files.
        where: what to call the source in messages.

    Raises:
        BadInputError: naming the file that is wrong.
    """
    config = read_json(folder / "config.json", where)
    architecture = config.get("model_type")
    if not isinstance(architecture, str):
        raise BadInputError(f"model.source: {where}: config.json names no model_type; it is not the config of a model")
    require_chat_template(folder, where)
    parameters, dtypes = _inspect_weights(folder, weights, where)
    tokenizer_config = folder / "tokenizer_config.json"
    settings = read_json(tokenizer_config, where) if tokenizer_config.exists() else {}
    return ModelFacts(
        architecture=architecture,
        parameters=parameters,
        dtypes=dtypes,
        tokenizer={name: _plain(settings[name]) for name in _RECORDED if name in settings},
        licence=read_licence(folder, config),
    )


def read_json(path: Path, where: str) -> dict[str, Any]:
    """A JSON object from a file.

    Raises:
        BadInputError: when it is none.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise BadInputError(
            f"model.source: {where}: {path.name} cannot be read as JSON ({error}); mend the file"
        ) from error
    if not isinstance(found, dict):
        raise BadInputError(f"model.source: {where}: {path.name} holds no JSON object; mend the file")
    return found


def require_chat_template(folder: Path, where: str) -> None:
    """Make sure that the model has a chat template.

    Raises:
        BadInputError: when it has none.
    """
    if (folder / TEMPLATE_FILE).exists() or (folder / "chat_template.json").exists():
        return
    settings = folder / "tokenizer_config.json"
    if settings.exists() and read_json(settings, where).get("chat_template"):
        return
    raise BadInputError(
        f"model.source: {where} has no chat template, so it is probably a base model that was not tuned to chat; write "
        "model.chat_template: with a template or the path of a .jinja file, or use the model's instruct version"
    )


def check_template(template: str) -> None:
    """Refuse a given chat template that is no valid Jinja.

    Raises:
        BadInputError: with the line.
    """
    # The `generation` blocks that transformers knows mark text only; they are taken out for the check.
    plain = re.sub(r"\{%-?\s*(?:end)?generation\s*-?%\}", "", template)
    try:
        ImmutableSandboxedEnvironment(extensions=["jinja2.ext.loopcontrols"]).parse(plain)
    except TemplateSyntaxError as error:
        raise BadInputError(
            f"model.chat_template: line {error.lineno} is not valid Jinja: {error.message}; mend the template"
        ) from error
    if "messages" not in template:
        raise BadInputError("model.chat_template: the template never uses `messages`, so no prompt can appear in it")


def read_licence(folder: Path, config: dict[str, Any]) -> str:
    """The licence a model's own files state: model card, config, licence file, in this order; else `unknown`."""
    card = folder / "README.md"
    if card.exists():
        front = re.match(r"---\s*\n(.*?)\n---", card.read_text(encoding="utf-8", errors="replace"), re.DOTALL)
        try:
            facts = yaml.safe_load(front[1]) if front else None
        except yaml.YAMLError:
            facts = None
        if isinstance(facts, dict):
            # "other" is the card's way of saying that the name stands beside it.
            names = [facts.get("license"), facts.get("license_name")]
            for name in reversed(names) if names[0] == "other" else names:
                if isinstance(name, str) and name:
                    return name
    stated = config.get("license")
    if isinstance(stated, str) and stated:
        return stated
    for path in sorted(folder.iterdir()):
        if path.name.upper().startswith(("LICENSE", "LICENCE", "COPYING")):
            text = path.read_text(encoding="utf-8", errors="replace")[:5000]
            known = [name for pattern, name in _LICENCE_TEXTS if re.search(pattern, text, re.IGNORECASE)]
            first = next((line.strip() for line in text.splitlines() if line.strip()), "")
            return known[0] if known else first[:100] or UNKNOWN
    return UNKNOWN


def _inspect_weights(folder: Path, weights: tuple[str, ...], where: str) -> tuple[int, list[str]]:
    parameters = 0
    dtypes: set[str] = set()
    tensors: dict[str, str] = {}
    for name in weights:
        try:
            with safe_open(folder / name, framework="numpy") as file:
                for key in file.keys():  # noqa: SIM118 - the file is no mapping
                    piece = file.get_slice(key)
                    count = 1
                    for size in piece.get_shape():
                        count *= size
                    parameters += count
                    dtypes.add(piece.get_dtype())
                    tensors[key] = name
        except (SafetensorError, OSError) as error:
            raise BadInputError(
                f"model.source: {where}: {name} is no complete safetensors file ({error}); download it again"
            ) from error
    if not tensors:
        raise BadInputError(f"model.source: {where}: {', '.join(weights)} hold no weights; download them again")
    index = folder / _INDEX
    if index.exists():
        placed = read_json(index, where).get("weight_map")
        for key, name in placed.items() if isinstance(placed, dict) else ():
            if name not in weights:
                raise BadInputError(f"model.source: {where} lacks {name}, which {_INDEX} names; download it again")
            if tensors.get(key) != name:
                raise BadInputError(f"model.source: {where}: {name} lacks the weight {key} that {_INDEX} puts there")
    elif len(weights) > 1:
        raise BadInputError(f"model.source: {where} has {len(weights)} weight files and no {_INDEX}; add it")
    return parameters, sorted(dtypes)


def _plain(value: Any) -> Any:
    """A special token's text, where the file has it as an object."""
    return value["content"] if isinstance(value, dict) and "content" in value else value

"""Takes over from the base model everything but the weights: tokenizer, configs, chat template, licence.

Used by `merge`. Files stay byte for byte as they are, except the chat template (given its default system prompt) and
config.json (where the dtype or the tying of embeddings changed). Model cards, training records and foreign weight
formats are left behind.
"""

import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from components.errors import BadInputError
from components.merge_lora.template import TEMPLATE_FOLDER, Opening, extend_template, read_templates, write_templates

SUFFIXES = frozenset({".json", ".txt", ".model", ".jinja", ".py", ".tiktoken"})
LEGAL = ("LICENSE", "LICENCE", "NOTICE", "COPYING", "USE_POLICY")
LEFT_BEHIND = frozenset(
    {"manifest.json", "merge_report.json", "training.json", "trainer_state.json", "model.safetensors.index.json"}
    | {"pytorch_model.bin.index.json", "requirements.txt"}
)


def carry_files(base: Path, out: Path, opening: Opening) -> dict[str, Any]:
    """Copy everything but the weights and give the chat templates their default system prompt.

    Args:
        base: the base model's directory.
        out: the merged model's, which holds its weights and config.json already.
        opening: what to insert where a request brings no system message.

    Returns:
        For the report: sha256 of files as the base has them (`carried`) and of those that were changed (`changed`).

    Raises:
        BadInputError: when there is a system prompt and no chat template to put it in.
    """
    templates = read_templates(base)
    if opening and not templates:
        raise BadInputError(
            f"{base} has no chat template to put the contract's system prompt in; give the base model one, or set "
            "merge.default_system_prompt: false"
        )
    found = [path for path in base.iterdir() if _is_carried(path)] + list((base / TEMPLATE_FOLDER).glob("*.jinja"))
    names = sorted(path.relative_to(base).as_posix() for path in found)
    for name in names:
        if not (out / name).exists():
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(base / name, out / name)
    if opening:
        write_templates(out, {name: extend_template(template, opening) for name, template in templates.items()})
    hashes = {name: _sha256(out / name) for name in names}
    same = {name: digest for name, digest in hashes.items() if _sha256(base / name) == digest}
    return {"carried": same, "changed": {name: digest for name, digest in hashes.items() if name not in same}}


def _is_carried(path: Path) -> bool:
    if not path.is_file() or path.name.startswith(".") or path.name in LEFT_BEHIND:
        return False
    return path.suffix in SUFFIXES or path.name.upper().startswith(LEGAL)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_config(directory: Path) -> dict[str, Any]:
    """config.json of a model that can be merged into.

    Args:
        directory: the model.

    Raises:
        BadInputError: when there is none, or the weights are quantised.
    """
    path = directory / "config.json"
    if not path.exists():
        raise BadInputError(f"{directory} has no config.json; it is not a model directory")
    config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if config.get("quantization_config"):
        raise BadInputError(
            f"{path}: the base is stored quantised ({config['quantization_config'].get('quant_method')}); an adapter "
            "trained in 4 bit is merged into the 16-bit model: set model.source to that"
        )
    return config


def write_config(base: Path, out: Path, *, dtype: str, untied: bool) -> None:
    """config.json with what the merge changed; none is written when nothing did.

    Args:
        base: the base model's directory.
        out: the merged model's.
        dtype: what the weights were written in, or `base`.
        untied: whether head and embedding are no longer the same.
    """
    before = read_config(base)
    after = _with_changes(before, dtype=dtype, untied=untied, nested=False)
    if isinstance(before.get("text_config"), dict):
        after["text_config"] = _with_changes(before["text_config"], dtype=dtype, untied=untied, nested=True)
    if after != before:
        (out / "config.json").write_text(json.dumps(after, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _with_changes(part: Mapping[str, Any], *, dtype: str, untied: bool, nested: bool) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    if dtype != "base":
        # transformers 5 writes `dtype`, earlier ones and other engines read `torch_dtype`.
        named = [key for key in ("dtype", "torch_dtype") if key in part]
        changes |= dict.fromkeys(named or ([] if nested else ["dtype"]), dtype)
    if untied and ("tie_word_embeddings" in part or not nested):
        changes["tie_word_embeddings"] = False
    return {**part, **changes}

"""Brings the base model into the store, whatever it is kept as, and pins it by one manifest.

Called by component.py, and by anyone who needs the base model of a config. A hub id, a folder, an s3:// URI or a .gguf
file becomes a folder of safetensors, tokenizer and chat template under `models/<hash of the source's content>`, so a
second run finds it there and copies nothing. Refuses what could not be trained later: see README.md.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from components.errors import PipelineError
from components.import_model.config import ModelConfig
from components.import_model.inspection import UNKNOWN, check_template, inspect_model
from components.import_model.origins import Origin, find_origin, list_model_files
from components.import_model.selection import TEMPLATE_FILE, select_files
from components.sections import content_hash
from components.steps import report_progress
from components.storage.disk import disk_errors
from components.storage.references import Reference
from components.storage.store import ArtifactStore

_STEP = "import_model"
_STAGES = 3
_VERSION = 1
"""Part of the key: raised when the same source would be imported differently."""


@dataclass(frozen=True)
class ImportedModel:
    """The base model in the store.

    Attributes:
        reference: names it for the steps that follow.
        reused: whether it was there already.
        provenance: source, revision, licence and the other facts of its manifest.
    """

    reference: Reference
    reused: bool
    provenance: dict[str, Any]


def import_model(model: ModelConfig, store: ArtifactStore, *, work: Path) -> ImportedModel:
    """Put the base model of a config into the store.

    Args:
        model: the config's model section.
        store: where to.
        work: folder for what is made on the way; left as it was found.

    Returns:
        The model's reference and what is recorded about it.

    Raises:
        BadInputError: the source is missing, incomplete, damaged or of a kind that is refused; no space; no right.
        PipelineError: the hub or the store does not answer.
    """
    if model.chat_template is not None:
        check_template(model.chat_template)
    origin = find_origin(model, store)
    in_place = None if model.mirror else str(Path(model.source).expanduser().resolve())
    key = f"models/{content_hash(_VERSION, origin.identity, model.chat_template, model.licence, in_place)}"
    there = store.find(key)
    if there is not None:
        return ImportedModel(there, True, store.read_manifest(there).provenance)
    staging = work / "import_model.staging"
    try:
        with disk_errors(work):
            shutil.rmtree(staging, ignore_errors=True)
            staging.mkdir(parents=True)
        return _bring(model, store, key, origin, staging)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _bring(model: ModelConfig, store: ArtifactStore, key: str, origin: Origin, staging: Path) -> ImportedModel:
    """Fetch, convert, check and store a model that is not there yet."""
    report_progress(_STEP, 0, _STAGES, unit="stage")
    folder = origin.fetch(staging)
    selection = origin.selection or select_files(
        list_model_files(folder),
        origin.where,
        allow_pickle=False,
        trust_remote_code=False,
        has_template=model.chat_template is not None,
    )
    files, weights, facts = selection.files, selection.weights, dict(origin.facts)
    if model.mirror:
        ready = staging / "ready"
        with disk_errors(ready):
            for name in files:
                if selection.format == "safetensors" or name not in weights:
                    _link(folder / name, ready / name)
            if selection.format == "pickle":
                from components.import_model.conversion import convert_pickles

                weights = convert_pickles(folder, weights, ready)
                facts["converted_from"] = "pickle"
            if model.chat_template is not None:
                (ready / TEMPLATE_FILE).write_text(model.chat_template, encoding="utf-8")
        folder = ready
    report_progress(_STEP, 1, _STAGES, unit="stage")
    provenance = _provenance(model, folder, weights, origin.where, facts)
    report_progress(_STEP, 2, _STAGES, unit="stage")
    try:
        if model.mirror:
            reference = store.put(folder, key, provenance=provenance)
        else:
            reference = store.put_in_place(folder, key, provenance=provenance, only=files)
    except PipelineError:
        # Another run may just have imported the same content from another place: that is as good.
        there = store.find(key)
        if there is None:
            raise
        return ImportedModel(there, True, store.read_manifest(there).provenance)
    report_progress(_STEP, _STAGES, _STAGES, unit="stage")
    return ImportedModel(reference, False, provenance)


def _provenance(
    model: ModelConfig, folder: Path, weights: tuple[str, ...], where: str, facts: dict[str, Any]
) -> dict[str, Any]:
    found = inspect_model(folder, weights, where)
    stated = found.licence if found.licence != UNKNOWN else facts.get("licence") or UNKNOWN
    return {
        "kind": "model",
        "source": facts["source"],
        "revision": facts.get("revision"),
        "licence": model.licence or stated,
        "format": "safetensors",
        "converted_from": facts.get("converted_from"),
        "architecture": found.architecture,
        "parameters": found.parameters,
        "dtypes": found.dtypes,
        "chat_template": "own" if model.chat_template is None else "given",
        "tokenizer": found.tokenizer,
    }


def _link(source: Path, target: Path) -> None:
    """Let a file appear in the staging folder; the store copies what the link leads to."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.symlink_to(source.resolve())

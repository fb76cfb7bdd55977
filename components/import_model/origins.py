"""The four kinds of source, each looked at first and fetched later: hub id, folder, s3:// URI, .gguf file.

Called by import_model. Looking at a source pins its content (commit, hashes, ETags), so that the store can be asked
whether it is there already; only if it is not is anything downloaded or converted.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from components.errors import BadInputError
from components.import_model.config import ModelConfig
from components.import_model.selection import Selection, select_files
from components.storage.config import StoreConfig
from components.storage.disk import disk_errors, sha256_of
from components.storage.manifest import make_manifest
from components.storage.references import Reference
from components.storage.store import ArtifactStore, fetch, open_store

log = logging.getLogger("grpo")
_TEMPLATES = "additional_chat_templates"


@dataclass(frozen=True)
class Origin:
    """A source that was looked at.

    Attributes:
        where: what to call it in messages.
        identity: JSON-able; changes when the content that would be imported does.
        facts: what the manifest says about where the model came from.
        fetch: given a working folder, returns a folder that holds the chosen files.
        selection: the chosen files; None when `fetch` makes them all (every file counts then).
    """

    where: str
    identity: dict[str, Any]
    facts: dict[str, Any]
    fetch: Callable[[Path], Path]
    selection: Selection | None


def find_origin(model: ModelConfig, store: ArtifactStore) -> Origin:
    """Look at a config's source.

    Args:
        model: the config's model section.
        store: its S3 options serve for s3:// sources too.

    Raises:
        BadInputError: it is missing, or no model can be made of it.
        PipelineError: the hub or the bucket does not answer.
    """
    kind = model.kind()
    if kind == "hub":
        return _hub(model)
    if kind == "s3":
        return _s3(model, store.config)
    path = Path(model.source).expanduser().resolve()
    return _gguf(path, model.source, model.dtype) if kind == "gguf" else _folder(path, model, {"source": str(path)})


def list_model_files(folder: Path) -> list[str]:
    """Names of the files of a folder that may belong to a model: its own, and those of its further chat templates."""
    with disk_errors(folder):
        names = [path.name for path in folder.iterdir() if path.is_file()]
        templates = folder / _TEMPLATES
        names += [f"{_TEMPLATES}/{path.name}" for path in templates.glob("*.jinja")] if templates.is_dir() else []
    return sorted(names)


def _select(names: list[str], where: str, model: ModelConfig) -> Selection:
    return select_files(
        names,
        where,
        allow_pickle=model.allow_pickle,
        trust_remote_code=model.trust_remote_code,
        has_template=model.chat_template is not None,
    )


def _folder(path: Path, model: ModelConfig, facts: dict[str, Any]) -> Origin:
    if model.revision is not None:
        raise BadInputError(f"model.revision applies to hub ids, and {model.source} is a folder; remove it")
    selection = _select(list_model_files(path), str(path), model)
    identity = {"files": make_manifest(path, {}, only=selection.files).digest}
    return Origin(str(path), identity, facts, lambda _work: path, selection)


def _hub(model: ModelConfig) -> Origin:
    from components.import_model.hub import download, resolve

    if not model.mirror:
        raise BadInputError(
            f"model.mirror: false uses a folder in place, and {model.source} is a hub id; write mirror: true"
        )
    found = resolve(model.source, model.revision)
    selection = _select(list(found.files), model.source, model)
    identity = {"commit": found.commit, "files": selection.files}
    facts = {"source": model.source, "revision": found.commit}
    return Origin(model.source, identity, facts, lambda _work: download(found, selection.files), selection)


def _s3(model: ModelConfig, options: StoreConfig) -> Origin:
    from components.storage.plain import download_source, find_source

    found = find_source(model.source, options)
    if found.is_file:
        if not found.uri.endswith(".gguf"):
            raise BadInputError(f"model.source: {found.uri} is one object and no .gguf; name the model's folder")
        return _gguf(download_source(found, config=options), found.uri, model.dtype)
    if found.is_artifact:
        # Written by a store of ours: its own manifest verifies it better than ETags do.
        above, _, key = found.uri.rpartition("/")
        reference = open_store(StoreConfig(**{**options.model_dump(), "uri": above})).find(key)
        if reference is not None:
            return _artifact(reference, model, options)
    selection = _select([item.path for item in found.objects], found.uri, model)
    chosen = replace(found, objects=tuple(item for item in found.objects if item.path in selection.files))
    return Origin(
        found.uri,
        {"objects": chosen.identity},
        {"source": found.uri, "revision": chosen.identity},
        lambda _work: download_source(chosen, config=options),
        selection,
    )


def _artifact(reference: Reference, model: ModelConfig, options: StoreConfig) -> Origin:
    folder = fetch(reference, config=options)
    return _folder(folder, model, {"source": reference.uri, "revision": reference.digest})


def _gguf(path: Path, where: str, dtype: str) -> Origin:
    from components.import_model.conversion import convert_gguf, read_gguf

    facts = read_gguf(path)
    sha256 = sha256_of(path)
    dense = "float32" if dtype == "auto" else dtype

    def convert(work: Path) -> Path:
        log.info("dequantising %s to %s: once, the result is kept in the store", where, dense)
        target = work / "dequantised"
        convert_gguf(path, target, dtype=dense, special_tokens=facts.special_tokens)
        return target

    return Origin(
        where,
        {"gguf": sha256, "dtype": dense},
        {
            "source": where,
            "revision": f"sha256:{sha256}",
            "licence": facts.licence,
            "converted_from": f"gguf ({facts.name or facts.architecture})",
        },
        convert,
        None,
    )

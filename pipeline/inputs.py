"""Puts the files of this machine that a config names into the store, and names them there instead.

Called before a run whose steps share nothing with this machine but the store: containers (runners.py), a cluster. A
person's own reward files travel the same way (submission.py). Limits: folders are stored whole; `model.mirror: false`
(weights used in place) is refused, since no other machine has them in that place.
"""

import os
import shutil
import tempfile
from pathlib import Path

from components.errors import BadInputError
from components.prepare_dataset.config import FileSource, is_local
from components.storage.references import Reference
from components.storage.store import ArtifactStore
from pipeline.config import RunConfig
from pipeline.fingerprint import files_fingerprint


def store_inputs(config: RunConfig, store: ArtifactStore) -> RunConfig:
    """Copy local inputs into the store; what is there already is not copied again.

    Args:
        config: the run config, input paths absolute.
        store: the artifact store of the run.

    Returns:
        The config with `model.source`, the data sources and `evaluation.also` naming what was stored.

    Raises:
        BadInputError: when `model.mirror` is false, or a file is missing.
        PipelineError: when the store fails.
    """
    model = config.model
    if model.kind() in ("folder", "gguf"):
        if not model.mirror:
            raise BadInputError(
                "model.mirror: false uses the folder in place, and steps that run elsewhere cannot see it; "
                "write mirror: true"
            )
        path = Path(model.source).expanduser()
        reference = _put(path, store)
        model = model.model_copy(
            update={"source": reference.uri if path.is_dir() else f"{reference.uri}/{path.name}", "mirror": True}
        )
    config.data.local_files()
    sources = {
        name: source.model_copy(update={"path": str(_put(Path(source.path).expanduser(), store))})
        for name, source in config.data.sources().items()
        if isinstance(source, FileSource) and is_local(source.path)
    }
    also = [
        entry.model_copy(update={"path": str(_put(Path(entry.path), store))})
        if entry.path is not None and "://" not in entry.path
        else entry
        for entry in config.evaluation.also
    ]
    return config.model_copy(
        update={
            "model": model,
            "data": config.data.model_copy(update=sources),
            "evaluation": config.evaluation.model_copy(update={"also": also}),
        }
    )


def _put(path: Path, store: ArtifactStore) -> Reference:
    """Store a file (as a folder that holds it) or a folder under the hash of its content."""
    key = f"inputs/{files_fingerprint([path])}"
    provenance = {"kind": "input", "name": path.name}
    if path.is_dir():
        return store.put(path, key, provenance=provenance)
    with tempfile.TemporaryDirectory(dir=_beside(path), prefix=".grpo-input-") as folder:
        copy = Path(folder) / path.name
        try:
            os.link(path.resolve(), copy)
        except OSError:  # another disk, or a file system without links
            shutil.copyfile(path, copy)
        return store.put(Path(folder), key, provenance=provenance)


def _beside(path: Path) -> Path | None:
    """The file's own folder, where a link costs nothing; None (the system's temporary folder) if it is read-only."""
    parent = path.resolve().parent
    return parent if os.access(parent, os.W_OK) else None

"""From a source of the config to files on this disk: local paths, s3:// URIs, artifacts, hub datasets, generated tasks.

Called by `prepare_dataset`. What is not local is fetched or generated into the step's work folder. Refuses what does
not exist, folders of mixed formats, and a task of a package that is not installed. Limits: a folder is read in
the order of its file names, files of other formats in it are left alone; hub datasets go through `load_dataset`.
"""

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from components.errors import BadInputError, PipelineError
from components.prepare_dataset.config import FileSource, GeneratedSource, HubSource, describe_missing, is_local
from components.prepare_dataset.readers import file_format

_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class SourceFiles:
    """Where the rows of a source lie.

    Attributes:
        files: (path, name shown to people) in reading order.
        shown: the whole source in words.
        provenance: JSON-able facts, the same on every machine: kind, names, sha256 of each file, revision.
    """

    files: tuple[tuple[Path, str], ...]
    shown: str
    provenance: dict[str, Any]


def resolve_source(
    source: FileSource | HubSource | GeneratedSource, *, name: str, columns: list[str], limit: int | None, work: Path
) -> SourceFiles:
    """Bring a source to this disk.

    Args:
        source: the config's source.
        name: the split it feeds, for messages and file names.
        columns: columns that will be read.
        limit: rows that will be read at most; None for all.
        work: folder for what is fetched or generated.

    Raises:
        BadInputError: when it does not exist or cannot be used.
        PipelineError: when the hub or the store cannot be reached.
    """
    if isinstance(source, HubSource):
        return _from_hub(source, name, columns, limit, work)
    if isinstance(source, GeneratedSource):
        return _generate(source, name, limit, work)
    return _from_files(source, name, work)


# --- Files ---------------------------------------------------------------------------------------------------------


def _from_files(source: FileSource, name: str, work: Path) -> SourceFiles:
    written = source.path
    if "@sha256:" in written:
        from components.storage.store import fetch

        root = fetch(written, work / "fetched")
    elif written.startswith("s3://"):
        from components.storage.plain import download_source, find_source

        root = download_source(find_source(written), work / "fetched")
    elif is_local(written):
        root = Path(written).expanduser()
    else:
        raise BadInputError(f"data.{name}: {written!r} is neither a path nor an s3:// URI; write one of them")
    if not root.exists():
        raise BadInputError(f"data.{name}: {describe_missing(root, written)}")
    if root.is_dir():
        files = _files_of(root, name)
    elif file_format(root) is None:
        raise BadInputError(
            f"data.{name}: {root.name} is no .jsonl, .csv, .tsv or .parquet file; convert it, or rename it"
        )
    else:
        files = [root]
    shown = [(path, path.relative_to(root).as_posix() if root.is_dir() else path.name) for path in files]
    facts = [{"name": label, "sha256": _sha256_of(path)} for path, label in shown]
    return SourceFiles(tuple(shown), written, {"kind": "files", "files": facts})


def _files_of(folder: Path, name: str) -> list[Path]:
    found = sorted(
        path
        for path in folder.rglob("*")
        if path.is_file()
        and file_format(path) is not None
        and not path.name.lower().endswith((".json", ".json.gz"))
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )
    if not found:
        raise BadInputError(f"data.{name}: folder {folder} holds no .jsonl, .csv, .tsv or .parquet file")
    kinds = {file_format(path): path.name for path in found}
    if len(kinds) > 1:
        raise BadInputError(
            f"data.{name}: folder {folder} mixes formats ({', '.join(sorted(kinds.values()))}); name one file, or keep "
            "one format in a folder"
        )
    return found


def _sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# --- Hugging Face hub ----------------------------------------------------------------------------------------------


def _from_hub(source: HubSource, name: str, columns: list[str], limit: int | None, work: Path) -> SourceFiles:
    import datasets
    import httpx
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError

    shown = f"{source.hub} ({source.split})"
    try:
        # A commit needs no look-up, so that a pinned dataset in the local cache works without network.
        pinned = source.revision is not None and _COMMIT.fullmatch(source.revision)
        revision = source.revision if pinned else HfApi().dataset_info(source.hub, revision=source.revision).sha
        rows = datasets.load_dataset(source.hub, source.name, split=source.split, revision=revision)
    except (RepositoryNotFoundError, RevisionNotFoundError, datasets.exceptions.DatasetNotFoundError) as error:
        raise BadInputError(
            f"data.{name}.hub: {source.hub} (revision {source.revision or 'default'}) is not on the hub, or needs a "
            f"token in HF_TOKEN: {_first_line(error)}"
        ) from error
    except (HfHubHTTPError, httpx.HTTPError, ConnectionError) as error:
        raise PipelineError(
            f"data.{name}.hub: the hub cannot be reached for {source.hub}: {_first_line(error)}"
        ) from error
    except ValueError as error:
        raise BadInputError(f"data.{name}: {source.hub}: {_first_line(error)}") from error
    if limit is not None:
        rows = rows.select(range(min(limit, len(rows))))
    present = [column for column in columns if column in rows.column_names]
    path = work / f"{name}-hub.parquet"
    (rows.select_columns(present) if len(present) == len(columns) else rows).to_parquet(path, batch_size=4096)
    facts = {"kind": "hub", "hub": source.hub, "name": source.name, "split": source.split, "revision": revision}
    return SourceFiles(((path, shown),), shown, facts)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


# --- Generated -----------------------------------------------------------------------------------------------------


def _generate(source: GeneratedSource, name: str, limit: int | None, work: Path) -> SourceFiles:
    try:
        import reasoning_gym
    except ImportError as error:
        raise BadInputError(
            f"data.{name}.task: {source.task!r} is made by reasoning-gym, which cannot be imported ({error}); "
            "install the extra: pip install 'grpo-pipeline[generated-data]'"
        ) from error
    try:
        rows: Iterable[Any] = reasoning_gym.create_dataset(
            source.task, seed=source.seed, size=source.size, **source.options
        )
    except (ValueError, TypeError, AssertionError) as error:
        raise BadInputError(f"data.{name}.task: {source.task!r} with {source.options}: {_first_line(error)}") from error
    path = work / f"{name}-generated.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for number, row in enumerate(rows):
            if number >= min(source.size, limit or source.size):
                break
            file.write(json.dumps(row, default=str) + "\n")
    shown = f"{source.task} (seed {source.seed})"
    facts = {
        "kind": "generated",
        "task": source.task,
        "seed": source.seed,
        "size": source.size,
        "options": source.options,
    }
    facts["version"] = getattr(reasoning_gym, "__version__", "unknown")
    return SourceFiles(((path, shown),), shown, facts)

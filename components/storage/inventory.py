"""What is in a store: list it, copy an artifact out of it, verify it, remove what nobody needs.

Called by the `grpo store` commands. Which artifacts are needed is for the caller to say (`keep`): this room knows
nothing of runs and registered versions. Limits: an artifact younger than a day, or under a live lease, stays.
"""

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from components.errors import BadInputError, PipelineError
from components.storage.disk import disk_errors, require_space
from components.storage.lease import held
from components.storage.manifest import DamagedArtifactError
from components.storage.references import Reference
from components.storage.store import ArtifactStore, default_cache

GRACE_S = 24 * 3600.0


@dataclass(frozen=True)
class Artifact:
    """One complete artifact.

    Attributes:
        key: its place in the store.
        reference: names its content.
        files: number of files.
        size: bytes.
        provenance: where it came from.
        location: folder outside the store that holds its files; None for most.
    """

    key: str
    reference: Reference
    files: int
    size: int
    provenance: dict[str, Any]
    location: str | None


@dataclass(frozen=True)
class Damage:
    """An artifact that is not what its manifest says.

    Attributes:
        key: its place in the store.
        fault: the first difference, in words.
        removed: whether it was removed.
    """

    key: str
    fault: str
    removed: bool


@dataclass(frozen=True)
class Garbage:
    """What `collect_garbage` removed, or would remove.

    Attributes:
        removed: the artifacts.
        kept: number of artifacts left.
        leftovers: what interrupted writers had left behind.
        size: bytes of the removed artifacts.
    """

    removed: tuple[Artifact, ...]
    kept: int
    leftovers: tuple[str, ...]
    size: int


def list_artifacts(store: ArtifactStore, prefix: str = "") -> list[Artifact]:
    """The complete artifacts below a prefix, sorted by key."""
    return [_describe(store, key) for key in store.keys(prefix)]


def copy_out(store: ArtifactStore, key: str, target: Path, *, cache: Path | None = None) -> Path:
    """Copy an artifact, verified, to a folder of a person's choice.

    Args:
        store: where it is.
        key: which one.
        target: folder that does not exist yet; it appears whole or not at all.
        cache: folder for downloads.

    Raises:
        BadInputError: the target exists, or has no space.
        PipelineError: there is no such artifact, or it is damaged.
    """
    if target.exists():
        raise BadInputError(f"{target} exists already; name a folder that does not")
    reference = store.find(key)
    if reference is None:
        raise BadInputError(f"{store.uri} has no complete artifact {key!r}; `grpo store ls` lists what it has")
    size = store.read_manifest(reference).size
    source = store.fetch(reference, cache or default_cache())
    unfinished = target.with_name(f".{target.name}.partial")
    with disk_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        require_space(target.parent, size)
        try:
            shutil.copytree(source, unfinished, dirs_exist_ok=True)
            unfinished.rename(target)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    return target


def verify_artifacts(store: ArtifactStore, prefix: str = "", *, remove_damaged: bool = False) -> list[Damage]:
    """Read every byte of the artifacts below a prefix.

    Args:
        store: where they are.
        prefix: which ones; a key for one alone.
        remove_damaged: remove what is damaged, so that the step that wrote it writes it anew.

    Returns:
        What is damaged; an empty list when all is well.

    Raises:
        PipelineError: the store could not be read, which says nothing about the artifacts.
    """
    damages = []
    for key in store.keys(prefix):
        try:
            store.verify(key)
        except DamagedArtifactError as error:
            if remove_damaged:
                store.delete(key)
            damages.append(Damage(key, str(error), remove_damaged))
    return damages


def collect_garbage(
    store: ArtifactStore, keep: Iterable[Reference | str], *, dry_run: bool = True, grace_s: float = GRACE_S
) -> Garbage:
    """Remove the artifacts that nobody needs, and what interrupted writers left behind.

    Args:
        store: where.
        keep: references (or their strings) that runs and registered versions hold.
        dry_run: only say what would be removed.
        grace_s: artifacts and leftovers younger than this stay: a run under way may be about to name them.

    Raises:
        BadInputError: a reference is malformed.
    """
    references = [item if isinstance(item, Reference) else Reference.parse(item) for item in keep]
    # Kept when the place or the content is named: one too many is cheaper than one too few.
    uris, digests = {item.uri for item in references}, {item.digest for item in references}
    artifacts = list_artifacts(store)
    removed = tuple(
        artifact
        for artifact in artifacts
        if artifact.reference.uri not in uris
        and artifact.reference.digest not in digests
        and store.written_s_ago(artifact.key) > grace_s
        and not _is_in_use(store, artifact.key)
    )
    if not dry_run:
        for artifact in removed:
            store.delete(artifact.key)
    leftovers = store.clean(grace_s, dry_run=dry_run)
    return Garbage(removed, len(artifacts) - len(removed), tuple(leftovers), sum(item.size for item in removed))


def _describe(store: ArtifactStore, key: str) -> Artifact:
    reference = store.find(key)
    if reference is None:
        raise PipelineError(f"{store.uri}/{key} was deleted while it was listed; run again")
    manifest = store.read_manifest(reference)
    size = 0 if manifest.location else manifest.size
    return Artifact(key, reference, len(manifest.files), size, manifest.provenance, manifest.location)


def _is_in_use(store: ArtifactStore, key: str) -> bool:
    """Whether a run owns the key or a prefix of it."""
    parts = key.split("/")
    return any(held(store, "/".join(parts[:depth])) for depth in range(1, len(parts) + 1))

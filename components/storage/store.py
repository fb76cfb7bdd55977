"""The one interface to artifacts: put a folder, find it again, fetch it verified, from a folder or from S3.

Called by every step and by the `grpo store` commands. `open_store` picks the backend by URI, `fetch` needs only a
reference. Limits: artifacts are immutable (other content under a key that is complete is refused), and one artifact
never lies inside another.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pydantic import ValidationError

from components.errors import BadInputError
from components.storage.config import StoreConfig
from components.storage.manifest import Manifest
from components.storage.references import Reference

CACHE_VARIABLE = "GRPO_CACHE"
_KEY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9._-]*)*")


@dataclass(frozen=True)
class Note:
    """A small object of the store beside the artifacts: a lease, a log.

    Attributes:
        content: its bytes.
        tag: names this version; a conditional write or delete passes it back.
        age_s: seconds since it was written, by the store's clock.
    """

    content: bytes
    tag: str
    age_s: float


class NoteChangedError(Exception):
    """A conditional write or delete of a note found another version than the caller's. The caller reads it again."""


class ArtifactStore(Protocol):
    """What a backend offers. Keys are relative, such as `models/<hash>`; notes have names of the same form.

    Attributes:
        uri: where it is, without a trailing slash.
        config: what it was opened with; its S3 options serve for other S3 URIs too.
    """

    uri: str
    config: StoreConfig

    def put(self, directory: Path, key: str, *, provenance: Mapping[str, Any]) -> Reference:
        """Store a folder; the same content again copies nothing; an interrupted one goes on.

        Raises:
            BadInputError: the folder cannot be stored, or the store cannot be written.
            PipelineError: the key already holds other content, or the store failed.
        """
        ...

    def put_in_place(
        self, directory: Path, key: str, *, provenance: Mapping[str, Any], only: tuple[str, ...] | None = None
    ) -> Reference:
        """Store only the manifest of a folder that stays where it is; `fetch` verifies and returns that folder.

        Args:
            directory: the folder; it must be reachable by whoever fetches.
            key: where the manifest goes.
            provenance: JSON-able facts.
            only: relative paths that count; None for all.
        """
        ...

    def find(self, key: str) -> Reference | None:
        """The complete artifact at a key, or None."""
        ...

    def keys(self, prefix: str = "") -> list[str]:
        """Keys of the complete artifacts below a prefix (whole path segments), sorted."""
        ...

    def read_manifest(self, reference: Reference | str) -> Manifest:
        """The manifest of a reference (its digest is checked) or of a key.

        Raises:
            PipelineError: when there is none or its digest is another.
        """
        ...

    def written_s_ago(self, key: str) -> float:
        """Seconds since the complete artifact at a key was written, by the store's clock."""
        ...

    def verify(self, reference: Reference | str) -> Manifest:
        """Read every byte of an artifact and compare it with its manifest.

        Raises:
            DamagedArtifactError: naming the first file that differs.
        """
        ...

    def fetch(self, reference: Reference, cache: Path) -> Path:
        """A local, verified folder with the artifact's content."""
        ...

    def delete(self, key: str) -> None:
        """Remove an artifact, its manifest first; no error when there is none."""
        ...

    def clean(self, older_than_s: float, *, dry_run: bool) -> list[str]:
        """Remove what interrupted writers left behind (temporary folders, unfinished uploads); returns their names."""
        ...

    def check_writable(self) -> None:
        """Write and delete a small object.

        Raises:
            BadInputError: naming what to mend.
        """
        ...

    def read_note(self, name: str) -> Note | None:
        """A note, or None."""
        ...

    def write_note(self, name: str, content: bytes, *, replaces: str | None) -> str:
        """Write a note only if it is still the version `replaces` (None: only if there is none); returns its tag.

        Raises:
            NoteChangedError: somebody else was first.
        """
        ...

    def delete_note(self, name: str, *, tag: str) -> None:
        """Remove a note if it is still this version.

        Raises:
            NoteChangedError: it is another version by now.
        """
        ...


def open_store(config: StoreConfig | str) -> ArtifactStore:
    """The store that a config or a URI names; nothing is contacted or created yet.

    Args:
        config: the `store` section, or its `uri` alone: a folder, file:///folder, s3://bucket/prefix.

    Raises:
        BadInputError: when the URI has another form.
    """
    if isinstance(config, str):
        try:
            config = StoreConfig(uri=config)
        except ValidationError as error:
            raise BadInputError(
                "; ".join(fault["msg"].removeprefix("Value error, ") for fault in error.errors())
            ) from error
    if config.uri.startswith("s3://"):
        from components.storage.s3 import S3Store

        return S3Store(config)
    from components.storage.local import FileStore

    return FileStore(config)


def fetch(reference: Reference | str, cache: Path | None = None, *, config: StoreConfig | None = None) -> Path:
    """A local folder with the content of an artifact, every byte verified.

    Args:
        reference: what the step that wrote the artifact returned.
        cache: folder for downloads (default: see `default_cache`). A file:// artifact is used in place.
        config: S3 options (endpoint, CA bundle and so on) where the environment does not give them; its `uri` is
            not used.

    Returns:
        The folder. It is shared: read it, never write into it.

    Raises:
        BadInputError: the reference is malformed, or the disk is full.
        PipelineError: the artifact is missing, damaged or another one, or the store does not answer.
    """
    if isinstance(reference, str):
        reference = Reference.parse(reference)
    # The folder above the artifact serves as the store: a reference says nothing about where the store's root was.
    root = reference.uri.rpartition("/")[0]
    options = (config or StoreConfig()).model_dump(exclude={"uri"})
    if root.startswith("file://"):
        options.pop("endpoint_url")
    return open_store(StoreConfig(uri=root or "file:///", **options)).fetch(reference, cache or default_cache())


def default_cache() -> Path:
    """Folder for downloaded artifacts: $GRPO_CACHE, else $XDG_CACHE_HOME or ~/.cache, with grpo-pipeline/artifacts."""
    named = os.environ.get(CACHE_VARIABLE)
    if named:
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "grpo-pipeline" / "artifacts"


def check_key(key: str) -> str:
    """Return the key if it is one.

    Raises:
        BadInputError: when it is empty, absolute, hidden or leaves the store.
    """
    if not _KEY.fullmatch(key):
        raise BadInputError(
            f"artifact key {key!r} is not of the form models/<hash>; use letters, digits and . _ - between "
            "slashes, no part beginning with a dot"
        )
    return key


def key_within(uri: str, reference: Reference) -> str:
    """The key of a reference in the store at `uri`.

    Raises:
        BadInputError: when the reference lies in another store.
    """
    prefix = uri.rstrip("/") + "/"
    if not reference.uri.startswith(prefix):
        raise BadInputError(f"{reference} does not lie in the store {uri}; name the store that wrote it")
    return check_key(reference.uri[len(prefix) :])

"""Artifacts in a folder (file://): on one machine, or on a disk that all pods share.

Opened by `components.storage.store.open_store`. An artifact is written to a hidden sibling and renamed, so nobody ever
sees half of one, and of two writers one wins and the other finds it there. Limits: no fsync, so a power cut can leave a
damaged file, which every read finds by its hash.
"""

import errno
import fcntl
import hashlib
import logging
import os
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from components.errors import BadInputError, PipelineError
from components.storage.config import StoreConfig
from components.storage.disk import disk_errors, require_space, sha256_of, snapshot
from components.storage.manifest import (
    MANIFEST,
    FileEntry,
    Manifest,
    checked_manifest,
    make_manifest,
    require_same,
    verify_directory,
    verify_in_place,
)
from components.storage.references import Reference
from components.storage.store import Note, NoteChangedError, check_key, key_within

log = logging.getLogger(__name__)

_COPY_THREADS = 4
_TEMPORARY = ".tmp"


class FileStore:
    """The artifacts below one folder.

    Attributes:
        uri: `file:///absolute/folder`.
        root: the same as a path.
        config: what it was opened with.
    """

    def __init__(self, config: StoreConfig) -> None:
        """Name the folder; it is created when first written.

        Args:
            config: its `uri` is a path (relative to the working directory, ~ allowed) or file:///absolute/folder.
        """
        self.config = config
        uri = config.uri
        path = Path(unquote(urlsplit(uri).path)) if uri.startswith("file://") else Path(uri).expanduser()
        # Not resolved: a link that moves must not change references, which cache keys hold.
        self.root = Path(os.path.abspath(path))  # noqa: PTH100
        self.uri = self.root.as_uri().rstrip("/")

    def put(self, directory: Path, key: str, *, provenance: Mapping[str, Any]) -> Reference:
        """See `ArtifactStore.put`. Files of an artifact found damaged are written anew."""
        before = snapshot(directory)
        return self._put(make_manifest(directory, provenance), directory, check_key(key), before)

    def put_in_place(
        self, directory: Path, key: str, *, provenance: Mapping[str, Any], only: tuple[str, ...] | None = None
    ) -> Reference:
        """See `ArtifactStore.put_in_place`."""
        location = str(directory.resolve())
        return self._put(make_manifest(directory, provenance, only=only, location=location), None, check_key(key), {})

    def find(self, key: str) -> Reference | None:
        """See `ArtifactStore.find`."""
        content = self._manifest_bytes(check_key(key))
        return None if content is None else self._reference(key, content)

    def keys(self, prefix: str = "") -> list[str]:
        """See `ArtifactStore.keys`."""
        top = self.root / check_key(prefix.rstrip("/")) if prefix.rstrip("/") else self.root
        found = []
        for folder, folders, names in os.walk(top):
            if MANIFEST in names:
                found.append(Path(folder).relative_to(self.root).as_posix())
                folders.clear()
            folders[:] = [name for name in folders if not name.startswith(".")]
        return sorted(found)

    def read_manifest(self, reference: Reference | str) -> Manifest:
        """See `ArtifactStore.read_manifest`."""
        key = check_key(reference) if isinstance(reference, str) else key_within(self.uri, reference)
        digest = reference.digest if isinstance(reference, Reference) else None
        return checked_manifest(self._manifest_bytes(key), f"{self.uri}/{key}", digest)

    def written_s_ago(self, key: str) -> float:
        """See `ArtifactStore.written_s_ago`."""
        with disk_errors(self.root):
            return max(0.0, time.time() - (self.root / check_key(key) / MANIFEST).stat().st_mtime)

    def verify(self, reference: Reference | str) -> Manifest:
        """See `ArtifactStore.verify`."""
        return self._verified(reference)[0]

    def fetch(self, reference: Reference, cache: Path) -> Path:
        """See `ArtifactStore.fetch`; returns the artifact's own folder."""
        return self._verified(reference)[1]

    def delete(self, key: str) -> None:
        """See `ArtifactStore.delete`."""
        target = self.root / check_key(key)
        if not (target / MANIFEST).exists():
            return
        with disk_errors(target):
            grave = self._sibling(target)
            target.rename(grave)
            shutil.rmtree(grave)

    def clean(self, older_than_s: float, *, dry_run: bool) -> list[str]:
        """See `ArtifactStore.clean`."""
        found = []
        for folder, folders, names in os.walk(self.root):
            leftovers = {name for name in (*folders, *names) if name.startswith(".") and name.endswith(_TEMPORARY)}
            folders[:] = [name for name in folders if name not in leftovers]
            for path in sorted(Path(folder) / name for name in leftovers):
                if time.time() - path.stat().st_mtime > older_than_s:
                    found.append(path.relative_to(self.root).as_posix())
                    if not dry_run:
                        with disk_errors(path):
                            shutil.rmtree(path) if path.is_dir() else path.unlink()
        return sorted(found)

    def check_writable(self) -> None:
        """See `ArtifactStore.check_writable`."""
        probe = self.root / f".probe-{secrets.token_hex(4)}"
        try:
            existed = self.root.exists()
            self.root.mkdir(parents=True, exist_ok=True)
            probe.write_bytes(b"grpo")
            probe.unlink()
            if not existed:
                self.root.rmdir()
        except OSError as error:
            raise BadInputError(
                f"store {self.uri} cannot be written ({error.strerror or error}); make {self.root} a folder this user "
                "may write to and its disk has space for, or set store.uri to another"
            ) from error

    def read_note(self, name: str) -> Note | None:
        """See `ArtifactStore.read_note`."""
        path = self._note_path(name)
        try:
            content = path.read_bytes()
            age_s = max(0.0, time.time() - path.stat().st_mtime)
        except FileNotFoundError:
            return None
        return Note(content, hashlib.sha256(content).hexdigest(), age_s)

    def write_note(self, name: str, content: bytes, *, replaces: str | None) -> str:
        """See `ArtifactStore.write_note`."""
        path = self._note_path(name)
        with disk_errors(path.parent), self._exclusively(path):
            self._require_version(name, replaces)
            temporary = self._sibling(path)
            temporary.write_bytes(content)
            temporary.replace(path)
        return hashlib.sha256(content).hexdigest()

    def delete_note(self, name: str, *, tag: str) -> None:
        """See `ArtifactStore.delete_note`."""
        path = self._note_path(name)
        with disk_errors(path.parent), self._exclusively(path):
            self._require_version(name, tag)
            path.unlink()

    # ---- writing

    def _put(
        self, manifest: Manifest, directory: Path | None, key: str, before: dict[str, tuple[int, int]]
    ) -> Reference:
        """Write a manifest and, unless they stay where they are (None), the files, unchanged since `before`."""
        self._refuse_nesting(key)
        target = self.root / key
        content = manifest.to_bytes()
        with disk_errors(target.parent):
            if self._same_is_there(key, content, manifest, directory):
                return self._reference(key, content)
            target.parent.mkdir(parents=True, exist_ok=True)
            temporary = self._sibling(target)
            temporary.mkdir()
            try:
                if directory is not None:
                    require_space(temporary, manifest.size)
                    _copy(manifest.files, directory, temporary)
                    if snapshot(directory) != before:
                        raise PipelineError(
                            f"{directory} changed while it was stored; run again when nothing writes to it"
                        )
                (temporary / MANIFEST).write_bytes(content)
                try:
                    temporary.rename(target)
                except OSError as error:
                    if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                        raise
                    # Another writer was faster: fine with the same content, otherwise this one is told.
                    if not self._same_is_there(key, content, manifest, directory):
                        self._move_aside(target, key)
                        temporary.rename(target)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
        return self._reference(key, content)

    def _same_is_there(self, key: str, content: bytes, manifest: Manifest, directory: Path | None) -> bool:
        """Whether the artifact is there already; its damaged files are mended from the folder.

        Raises:
            PipelineError: when other content is there.
        """
        there = self._manifest_bytes(key)
        if there is None:
            return False
        require_same(there, content, f"{self.uri}/{key}")
        if directory is not None:
            target = self.root / key
            for entry in manifest.files:
                path = target / entry.path
                if not (path.is_file() and path.stat().st_size == entry.size and sha256_of(path) == entry.sha256):
                    mended = self._sibling(target)
                    mended.mkdir()
                    try:
                        _copy((entry,), directory, mended)
                        path.parent.mkdir(parents=True, exist_ok=True)
                        (mended / entry.path).replace(path)
                    finally:
                        shutil.rmtree(mended, ignore_errors=True)
        return True

    def _move_aside(self, target: Path, key: str) -> None:
        """Make room for an artifact where a folder without a manifest is: nobody can read it as one (S3 is alike).

        Raises:
            PipelineError: when it is a file, or holds artifacts.
        """
        if not target.is_dir() or self.keys(key):
            raise PipelineError(f"{target} is in the way and is no complete artifact; move or delete it and run again")
        aside = target.with_name(f"{target.name}.without-manifest-{secrets.token_hex(4)}")
        target.rename(aside)
        log.warning("%s had no manifest, so nothing could read it; it is at %s now, delete it at will", target, aside)

    def _refuse_nesting(self, key: str) -> None:
        parent = self.root
        for part in key.split("/")[:-1]:
            parent = parent / part
            if (parent / MANIFEST).is_file():
                raise BadInputError(f"key {key!r} lies inside the artifact {parent.as_uri()}; choose a key beside it")

    # ---- reading

    def _verified(self, reference: Reference | str) -> tuple[Manifest, Path]:
        manifest = self.read_manifest(reference)
        where = reference.uri if isinstance(reference, Reference) else f"{self.uri}/{reference}"
        if manifest.location is not None:
            return manifest, verify_in_place(manifest, where)
        key = reference if isinstance(reference, str) else key_within(self.uri, reference)
        folder = self.root / key
        mend = f"it was changed or damaged after it was written: delete {folder} and run again, its step writes it anew"
        verify_directory(folder, manifest, where=where, mend=mend)
        return manifest, folder

    def _manifest_bytes(self, key: str) -> bytes | None:
        path = self.root / key / MANIFEST
        with disk_errors(self.root):
            try:
                return path.read_bytes()
            except (FileNotFoundError, NotADirectoryError):
                return None

    def _reference(self, key: str, content: bytes) -> Reference:
        return Reference((self.root / key).as_uri(), hashlib.sha256(content).hexdigest())

    # ---- notes

    def _note_path(self, name: str) -> Path:
        return self.root / ".notes" / check_key(name)

    def _require_version(self, name: str, tag: str | None) -> None:
        note = self.read_note(name)
        if (note.tag if note else None) != tag:
            raise NoteChangedError(name)

    @contextmanager
    def _exclusively(self, path: Path) -> Iterator[None]:
        """Keep other processes from writing the same note while the body compares and writes."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with (path.parent / ".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    @staticmethod
    def _sibling(path: Path) -> Path:
        return path.with_name(f".{path.name}-{secrets.token_hex(6)}{_TEMPORARY}")


def _copy(entries: tuple[FileEntry, ...], source: Path, target: Path) -> None:
    def copy_one(entry: FileEntry) -> None:
        destination = target / entry.path
        destination.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / entry.path, destination)

    with ThreadPoolExecutor(_COPY_THREADS) as pool:
        for _ in pool.map(copy_one, entries):
            pass

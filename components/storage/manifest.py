"""The list of an artifact's files, sizes and hashes, and where it came from: `manifest.json`, written last.

Called by the stores and by `fetch`; an artifact without a manifest is not complete and does not exist for anyone. The
bytes of a manifest are the same for the same content and provenance (no time, no host in it), so its sha256, the
artifact's digest, names the content. Refuses manifests of another format and paths that lead out of the folder.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Self

from components.errors import BadInputError, PipelineError
from components.storage.disk import disk_errors, list_files, sha256_of

MANIFEST = "manifest.json"
FORMAT = 1
_HASHING_THREADS = 4


class DamagedArtifactError(PipelineError):
    """An artifact is not what its manifest says; its step must write it anew."""


@dataclass(frozen=True)
class FileEntry:
    """One file of an artifact.

    Attributes:
        path: relative to the artifact, with forward slashes.
        size: bytes.
        sha256: of the content, 64 hex digits.
    """

    path: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """What an artifact is made of.

    Attributes:
        files: sorted by path.
        provenance: JSON-able facts on where the content came from.
        location: absolute folder that holds the files when the artifact is used in place; None when they lie beside
            the manifest.
    """

    files: tuple[FileEntry, ...]
    provenance: dict[str, Any] = field(default_factory=dict)
    location: str | None = None

    @property
    def size(self) -> int:
        """Bytes of all files together."""
        return sum(entry.size for entry in self.files)

    @property
    def digest(self) -> str:
        """Sha256 of `to_bytes()`, 64 hex digits."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    def to_bytes(self) -> bytes:
        """The content of `manifest.json`, the same for equal manifests."""
        document: dict[str, Any] = {
            "format": FORMAT,
            "provenance": self.provenance,
            "files": [{"path": entry.path, "size": entry.size, "sha256": entry.sha256} for entry in self.files],
        }
        if self.location is not None:
            document["location"] = self.location
        try:
            return (json.dumps(document, sort_keys=True, indent=1, allow_nan=False) + "\n").encode("ascii")
        except (TypeError, ValueError) as error:
            raise BadInputError(
                f"provenance cannot be written as JSON ({error}); pass text, numbers and lists"
            ) from error

    @classmethod
    def from_bytes(cls, content: bytes, where: str) -> Self:
        """Read a manifest.

        Args:
            content: what `to_bytes` made.
            where: URI of the artifact, for the message.

        Raises:
            PipelineError: when the content is a manifest of another format.
            DamagedArtifactError: when it is no manifest.
        """
        try:
            document = json.loads(content)
            if document["format"] != FORMAT:
                raise PipelineError(
                    f"{where}/{MANIFEST} has format {document['format']!r}, this version reads {FORMAT}; use the "
                    "version of the pipeline that wrote it"
                )
            files = tuple(
                FileEntry(_inside(item["path"]), int(item["size"]), str(item["sha256"])) for item in document["files"]
            )
            return cls(files, dict(document["provenance"]), document.get("location"))
        except (ValueError, KeyError, TypeError) as error:
            raise DamagedArtifactError(
                f"{where}/{MANIFEST} is damaged or not a manifest ({error}); delete the artifact and run again so that "
                "its step writes it anew"
            ) from error


def make_manifest(
    directory: Path, provenance: Mapping[str, Any], *, only: Iterable[str] | None = None, location: str | None = None
) -> Manifest:
    """Hash the files of a folder.

    Args:
        directory: the folder; a `manifest.json` of ours at its top is left out.
        provenance: JSON-able facts on where the content came from.
        only: relative paths to take; None for every file.
        location: see `Manifest.location`.

    Raises:
        BadInputError: when the folder is missing, empty, or has a file of its own called manifest.json.
    """
    if only is None:
        found = list_files(directory)
        own = found.pop(MANIFEST, None)
        if own is not None and not _is_ours(own):
            raise BadInputError(f"{own}: {MANIFEST} is the name of the store's own list of files; rename this file")
    else:
        found = {name: directory / name for name in sorted(set(only))}
    if not found:
        raise BadInputError(f"{directory} holds no file; there is nothing to store")
    with disk_errors(directory), ThreadPoolExecutor(_HASHING_THREADS) as pool:
        entries = tuple(
            pool.map(lambda item: FileEntry(item[0], item[1].stat().st_size, sha256_of(item[1])), found.items())
        )
    return Manifest(entries, dict(provenance), location)


def verify_directory(directory: Path, manifest: Manifest, *, where: str, mend: str, extra_files: bool = False) -> None:
    """Compare a folder with its manifest: every size, every sha256, nothing missing, nothing more.

    Args:
        directory: the folder that holds the files.
        manifest: what it should hold.
        where: URI of the artifact, for the message.
        mend: what to do about a difference, for the message.
        extra_files: whether files beside the manifest's are allowed (a person's own folder used in place).

    Raises:
        DamagedArtifactError: naming the file that differs first.
    """
    fault = find_fault(directory, manifest, extra_files=extra_files)
    if fault is not None:
        raise DamagedArtifactError(f"{where}: {fault}; {mend}")


def verify_in_place(manifest: Manifest, where: str) -> Path:
    """The folder outside the store that an artifact is used from, its files compared with the manifest.

    Raises:
        DamagedArtifactError: when it changed, or is not on this machine.
    """
    folder = Path(str(manifest.location))
    verify_directory(
        folder,
        manifest,
        where=f"{where}, used in place",
        mend=f"the folder {folder} changed since it was imported, or this machine does not have it: put the files "
        "back, run from the import on, or set model.mirror: true",
        extra_files=True,
    )
    return folder


def checked_manifest(content: bytes | None, where: str, digest: str | None) -> Manifest:
    """The manifest that a store found, or the reason why it is not the one that was meant.

    Args:
        content: bytes of `manifest.json`; None when there is none.
        where: URI of the artifact.
        digest: what its sha256 must be; None for any.

    Raises:
        PipelineError: there is none, or another one.
        DamagedArtifactError: it is no manifest.
    """
    if content is None:
        raise PipelineError(f"{where} holds no complete artifact (no {MANIFEST}); run the step that writes it again")
    found = hashlib.sha256(content).hexdigest()
    if digest is not None and found != digest:
        raise PipelineError(
            f"{where} holds another artifact than the one meant ({MANIFEST} has sha256 {found[:12]}..., the reference "
            f"{digest[:12]}...); run again from the step that wrote it"
        )
    return Manifest.from_bytes(content, where)


def require_same(there: bytes, ours: bytes, where: str) -> None:
    """Refuse to write over an artifact with other content.

    Raises:
        PipelineError: when the two manifests differ.
    """
    if there != ours:
        raise PipelineError(
            f"{where} already holds other content, written by another run with the same key; artifacts are never "
            "overwritten: use that one, or delete it and run again"
        )


def find_fault(directory: Path, manifest: Manifest, *, extra_files: bool = False) -> str | None:
    """The first difference between a folder and its manifest in words, cheap checks first; None when they agree."""
    if not directory.is_dir():
        return f"folder {directory} is missing"
    for entry in manifest.files:
        path = directory / entry.path
        if not path.is_file():
            return f"file {entry.path!r} is missing from {directory}"
        if path.stat().st_size != entry.size:
            return f"file {entry.path!r} has {path.stat().st_size} bytes, its manifest says {entry.size}"
    if not extra_files:
        expected = {entry.path for entry in manifest.files} | {MANIFEST}
        extra = [name for name in list_files(directory) if name not in expected]
        if extra:
            return f"file {extra[0]!r} is not in the manifest" + (f", nor {len(extra) - 1} more" if extra[1:] else "")
    with disk_errors(directory), ThreadPoolExecutor(_HASHING_THREADS) as pool:
        hashes = pool.map(lambda entry: sha256_of(directory / entry.path), manifest.files)
        for entry, sha256 in zip(manifest.files, hashes, strict=True):
            if sha256 != entry.sha256:
                return f"file {entry.path!r} has sha256 {sha256[:12]}..., its manifest says {entry.sha256[:12]}..."
    return None


def _inside(path: Any) -> str:
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts or pure.as_posix() != path or path in (".", MANIFEST) or "\\" in path:
        raise ValueError(f"path {path!r} does not lie inside the artifact")
    return str(path)


def _is_ours(path: Path) -> bool:
    try:
        Manifest.from_bytes(path.read_bytes(), str(path.parent))
    except PipelineError:
        return False
    return True

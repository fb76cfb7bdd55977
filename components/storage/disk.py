"""Local files of the store: what a folder holds, its hashes, and what a failing disk is told as.

Called by the manifest, the file:// store and the S3 store. Refuses in an artifact: links to folders, broken links,
devices, and names that are not text, because a copy of them on another machine would be another thing.
"""

import errno
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from components.errors import BadInputError, PipelineError


@contextmanager
def disk_errors(place: Path) -> Iterator[None]:
    """Turn an operating system error of the body into one sentence that names the mend.

    Args:
        place: the folder being written or read, named in the message.

    Raises:
        BadInputError: no space, no permission, or a read-only file system: only a person can mend it.
        PipelineError: any other failure of the disk.
    """
    try:
        yield
    except OSError as error:
        raise explain_disk_error(error, place) from error


def explain_disk_error(error: OSError, place: Path) -> PipelineError:
    """The error to raise in place of `error`, which happened while `place` was read or written."""
    name = error.filename or place
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return BadInputError(
            f"no space left on the disk of {place} (while writing {name}); free some, or choose another disk, and run "
            "again: what is complete is kept"
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return BadInputError(
            f"{name} may not be written or read ({error.strerror}); give this user the right to {place}, or choose "
            "another folder"
        )
    return PipelineError(f"{name}: {error.strerror or error}; check the disk of {place} and run again")


def require_space(place: Path, needed: int) -> None:
    """Refuse to begin what the disk cannot hold.

    Args:
        place: an existing folder on the disk that will be written.
        needed: bytes that will be written.

    Raises:
        BadInputError: with both sizes, when less than `needed` is free.
    """
    free = shutil.disk_usage(place).free
    if needed > free:
        raise BadInputError(
            f"no space left on the disk of {place}: {needed / 1e6:,.1f} MB needed, {free / 1e6:,.1f} MB free; free "
            "some, or choose another disk"
        )


def list_files(directory: Path) -> dict[str, Path]:
    """Every file below a folder, by its relative path with forward slashes, sorted.

    Links to files count as the file they lead to (the Hugging Face cache is made of them).

    Raises:
        BadInputError: when the folder is missing or holds something that cannot be stored.
    """
    if not directory.is_dir():
        raise BadInputError(f"{directory} is not a folder; nothing can be stored from it")
    found: dict[str, Path] = {}
    for root, folders, names in os.walk(directory):
        for name in folders:
            if (Path(root) / name).is_symlink():
                raise BadInputError(f"{Path(root) / name} is a link to a folder; replace it with the folder itself")
        for name in names:
            path = Path(root) / name
            if not path.is_file():
                raise BadInputError(f"{path} is a broken link or no regular file; remove it from the folder")
            relative = PurePosixPath(path.relative_to(directory)).as_posix()
            if not relative.isprintable():
                raise BadInputError(f"{path!r} has a name that is not plain text; rename it")
            found[relative] = path
    return dict(sorted(found.items()))


def sha256_of(path: Path) -> str:
    """Sha256 of a file's content, 64 hex digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def snapshot(directory: Path) -> dict[str, tuple[int, int]]:
    """Size and time of last change (ns) of every file of a folder: equal before and after means nobody wrote to it."""
    return {
        name: (status.st_size, status.st_mtime_ns)
        for name, path in list_files(directory).items()
        for status in [path.stat()]
    }

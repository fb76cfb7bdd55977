"""Files up to S3 and down again, in parallel, with a hash on each and going on where an earlier try stopped.

Called by the S3 store. Up: small files by one request each from a pool, large ones by boto3's transfer manager
(parallel multipart). Down: ranges of all files from one pool, each range noted when it is on disk, because the transfer
manager begins a broken file from zero and a shard of a model is gigabytes. Limits: a multipart upload that was cut off
begins that one file again.
"""

import hashlib
import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import botocore.exceptions as failures
import urllib3
from boto3.s3.transfer import TransferConfig, create_transfer_manager
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from components.errors import PipelineError
from components.storage.disk import require_space, sha256_of
from components.storage.manifest import DamagedArtifactError, FileEntry
from components.storage.progress import TransferProgress
from components.storage.s3_client import Bucket
from components.storage.s3_small import SMALL, SmallObjects

SHA256_METADATA = "grpo-sha256"
_CHUNK = 1 << 20
_MIB = 1 << 20
_LONGEST_PAUSE_S = 20
_STREAM_FAILURES = (failures.BotoCoreError, urllib3.exceptions.HTTPError, ConnectionError)


@dataclass(frozen=True)
class Wanted:
    """One object to download.

    Attributes:
        key: its full key in the bucket.
        path: where it goes, relative to the folder.
        size: bytes it must have.
        sha256: 64 hex digits it must have; None when nobody recorded it.
        etag: version it must still be; None when the sha256 decides.
    """

    key: str
    path: str
    size: int
    sha256: str | None
    etag: str | None = None


# ---- up


def upload_files(bucket: Bucket, prefix: str, directory: Path, entries: Iterable[FileEntry]) -> None:
    """Upload files of a folder, each with its sha256 in its metadata.

    Args:
        bucket: where to.
        prefix: key of the artifact in the bucket, without a trailing slash.
        directory: the folder.
        entries: the files to send, hashed before.

    Raises:
        PipelineError: a file changed since it was hashed.
        botocore.exceptions.ClientError, BotoCoreError: the store failed in every try.
    """
    entries = tuple(entries)
    progress = TransferProgress("upload", sum(entry.size for entry in entries))
    small = [entry for entry in entries if entry.size <= SMALL]
    objects = SmallObjects(bucket)
    with ThreadPoolExecutor(bucket.config.concurrency) as pool:
        _all_or_first_error(
            [pool.submit(_put_small, objects, prefix, directory, entry, progress) for entry in small], pool
        )
    large = [entry for entry in entries if entry.size > SMALL]
    if not large:
        return
    options = TransferConfig(
        multipart_threshold=bucket.config.part_size_mib * _MIB,
        multipart_chunksize=bucket.config.part_size_mib * _MIB,
        max_concurrency=bucket.config.concurrency,
        preferred_transfer_client="classic",
    )
    with create_transfer_manager(bucket.client, options) as manager:
        uploads = [
            manager.upload(
                str(directory / entry.path),
                bucket.name,
                f"{prefix}/{entry.path}",
                extra_args={"Metadata": {SHA256_METADATA: entry.sha256}},
                subscribers=[_Counter(progress)],
            )
            for entry in large
        ]
        for upload in uploads:
            upload.result()


def uploaded_before(bucket: Bucket, prefix: str, entries: Iterable[FileEntry], sizes: dict[str, int]) -> set[str]:
    """Paths of the entries that are in the bucket already with the same size and recorded sha256.

    Args:
        bucket: where to look.
        prefix: key of the artifact in the bucket.
        entries: the files wanted there.
        sizes: size of each object that is there, by path.
    """
    candidates = [entry for entry in entries if sizes.get(entry.path) == entry.size]

    def recorded(entry: FileEntry) -> bool:
        head = bucket.client.head_object(Bucket=bucket.name, Key=f"{prefix}/{entry.path}")
        return bool(head["Metadata"].get(SHA256_METADATA) == entry.sha256)

    with ThreadPoolExecutor(bucket.config.concurrency) as pool:
        same = list(pool.map(recorded, candidates))
    return {entry.path for entry, is_same in zip(candidates, same, strict=True) if is_same}


def _put_small(
    objects: SmallObjects, prefix: str, directory: Path, entry: FileEntry, progress: TransferProgress
) -> None:
    path = directory / entry.path
    content = path.read_bytes()
    digest = hashlib.sha256(content)
    if digest.hexdigest() != entry.sha256:
        raise PipelineError(f"{path} changed while it was stored; run again when nothing writes to {directory}")
    objects.write(f"{prefix}/{entry.path}", content, digest.digest(), {SHA256_METADATA: entry.sha256})
    progress.add(entry.size)


class _Counter:
    """The transfer manager's subscriber that counts bytes."""

    def __init__(self, progress: TransferProgress) -> None:
        self._progress = progress

    def on_queued(self, **_: Any) -> None:
        """Nothing to do; the transfer manager asks for it."""

    def on_progress(self, bytes_transferred: int, **_: Any) -> None:
        """Count."""
        self._progress.add(bytes_transferred)

    def on_done(self, **_: Any) -> None:
        """Nothing to do; the transfer manager asks for it."""


# ---- down


def download_files(bucket: Bucket, wanted: Iterable[Wanted], work: Path) -> Path:
    """Download objects into a folder, going on where an earlier try stopped.

    Args:
        bucket: where from.
        wanted: the objects.
        work: folder, kept between tries: `files/` holds complete, verified files, `parts/` the others.

    Returns:
        `work/files`, holding exactly the wanted files. The caller renames it.

    Raises:
        BadInputError: no space left.
        PipelineError: an object is not what was wanted.
        botocore.exceptions.ClientError, BotoCoreError: the store failed in every try.
    """
    wanted = tuple(wanted)
    files, parts = work / "files", work / "parts"
    for folder in (files, parts):
        folder.mkdir(parents=True, exist_ok=True)
    _remove_unwanted(files, wanted)
    progress = TransferProgress("download", sum(item.size for item in wanted))
    with ThreadPoolExecutor(bucket.config.concurrency) as pool:
        objects = SmallObjects(bucket)
        downloads = [_Download(objects, item, files / item.path, parts, progress) for item in wanted]
        complete = list(pool.map(_Download.is_complete, downloads))
        missing = [download for download, done in zip(downloads, complete, strict=True) if not done]
        require_space(work, sum(download.bytes_missing() for download in missing))
        _all_or_first_error([pool.submit(task) for download in missing for task in download.tasks()], pool)
    return files


class _Download:
    """One object on its way to a file. Its ranges run in the pool; the one that ends last verifies the whole."""

    def __init__(
        self, objects: SmallObjects, item: Wanted, target: Path, parts: Path, progress: TransferProgress
    ) -> None:
        self._objects = objects
        self._bucket = bucket = objects.bucket
        self._item = item
        self._target = target
        self._part = bucket.config.part_size_mib * _MIB
        # Named by all that must be the same for another try to go on with it.
        identity = f"{item.path} {item.size} {item.sha256} {item.etag} {self._part}"
        name = hashlib.sha256(identity.encode()).hexdigest()[:24]
        self._data = parts / f"{name}.data"
        self._journal = parts / f"{name}.ranges"
        self._progress = progress
        self._lock = threading.Lock()
        self._have = self._read_journal()
        self._resumed = bool(self._have)

    def is_complete(self) -> bool:
        """Whether an earlier try brought the file, whole and right."""
        item = self._item
        if not self._target.is_file() or self._target.stat().st_size != item.size:
            return False
        if item.sha256 is not None and sha256_of(self._target) != item.sha256:
            return False
        self._progress.add(item.size)
        return True

    def bytes_missing(self) -> int:
        """Bytes still to come."""
        return self._item.size - sum(min(self._part, self._item.size - start) for start in self._have)

    def tasks(self) -> list[Callable[[], None]]:
        """What must run, in any order, for the file to be there."""
        self._target.parent.mkdir(parents=True, exist_ok=True)
        if self._item.size <= SMALL:
            return [self._whole]
        self._progress.add(self._item.size - self.bytes_missing())
        with self._data.open("ab") as file:
            file.truncate(self._item.size)
        missing = [start for start in self._starts() if start not in self._have]
        return [partial(self._range, start) for start in missing] or [self._verify_and_place]

    def _starts(self) -> range:
        return range(0, self._item.size, self._part)

    def _whole(self) -> None:
        content = self._retrying(self._read)
        if len(content) != self._item.size:
            raise self._changed(f"{len(content)} bytes instead of {self._item.size}")
        if self._item.sha256 is not None and hashlib.sha256(content).hexdigest() != self._item.sha256:
            raise self._changed("another sha256")
        # Straight to its place: whoever goes on after a torn write hashes what is there first.
        self._target.write_bytes(content)
        self._progress.add(self._item.size)

    def _range(self, start: int) -> None:
        self._retrying(partial(self._stream, start))
        with self._lock:
            with self._journal.open("a") as journal:
                journal.write(f"{start}\n")
            self._have.add(start)
            last = len(self._have) == len(self._starts())
        if last:
            self._verify_and_place()

    def _verify_and_place(self) -> None:
        if self._item.sha256 is not None and sha256_of(self._data) != self._item.sha256:
            self._journal.unlink(missing_ok=True)
            if not self._resumed:
                self._data.unlink()
                raise self._changed("another sha256")
            # What an earlier try left may be stale or torn: once more from the beginning.
            self._resumed = False
            self._have = set()
            self._progress.add(-self._item.size)
            for start in self._starts():
                self._range(start)
            return
        self._data.replace(self._target)
        self._journal.unlink(missing_ok=True)

    def _read(self) -> bytes:
        try:
            return self._objects.read(self._item.key, self._item.etag)
        except _STREAM_FAILURES as error:
            raise _BrokenStreamError(str(error)) from error

    def _stream(self, start: int) -> None:
        end = min(start + self._part, self._item.size)
        answer = self._get(Range=f"bytes={start}-{end - 1}")
        total = str(answer.get("ContentRange", "")).rpartition("/")[2]
        if total != str(self._item.size):
            raise self._changed(f"{total} bytes instead of {self._item.size}")
        offset = start
        with self._data.open("r+b") as file:
            chunks = answer["Body"].iter_chunks(_CHUNK)
            while offset < end:
                try:
                    chunk = next(chunks, b"")
                except _STREAM_FAILURES as error:
                    self._progress.add(start - offset)
                    raise _BrokenStreamError(str(error)) from error
                if not chunk:
                    self._progress.add(start - offset)
                    raise _BrokenStreamError(f"it ended after {offset - start} of {end - start} bytes")
                os.pwrite(file.fileno(), chunk, offset)
                offset += len(chunk)
                self._progress.add(len(chunk))

    def _get(self, **options: Any) -> Any:
        if self._item.etag is not None:
            options["IfMatch"] = self._item.etag
        return self._bucket.client.get_object(Bucket=self._bucket.name, Key=self._item.key, **options)

    def _retrying(self, action: Callable[[], Any]) -> Any:
        # boto3 retries a request that fails; an answer that breaks off while it is read is ours to retry.
        attempts = Retrying(
            retry=retry_if_exception_type(_BrokenStreamError),
            stop=stop_after_attempt(self._bucket.config.attempts),
            wait=wait_random_exponential(max=_LONGEST_PAUSE_S),
            reraise=True,
        )
        try:
            return attempts(action)
        except _BrokenStreamError as error:
            raise PipelineError(
                f"s3://{self._bucket.name}/{self._item.key}: the connection broke off in every try ({error}); run "
                "again: what is complete is kept"
            ) from error

    def _changed(self, how: str) -> PipelineError:
        return DamagedArtifactError(
            f"s3://{self._bucket.name}/{self._item.key} has {how}: it was changed or damaged after it was stored; "
            "remove the artifact (grpo store verify --remove-damaged) and run again from the step that wrote it"
        )

    def _read_journal(self) -> set[int]:
        if not (self._journal.is_file() and self._data.is_file()):
            return set()
        # The last line may be torn; every other one was written after its bytes.
        return {int(line) for line in self._journal.read_text().split("\n")[:-1]}


class _BrokenStreamError(Exception):
    """The body of an answer stopped coming."""


def _all_or_first_error(futures: list[Future[Any]], pool: ThreadPoolExecutor) -> None:
    """Wait for all; on the first failure drop what has not begun and raise it."""
    _, unfinished = wait(futures, return_when=FIRST_EXCEPTION)
    if unfinished:
        pool.shutdown(wait=True, cancel_futures=True)
    for future in futures:
        if future.done() and not future.cancelled():
            future.result()


def _remove_unwanted(files: Path, wanted: tuple[Wanted, ...]) -> None:
    paths = {item.path for item in wanted}
    for path in sorted(files.rglob("*"), reverse=True):
        if path.is_dir():
            if not any(path.iterdir()):
                path.rmdir()
        elif path.relative_to(files).as_posix() not in paths:
            path.unlink()

"""Artifacts in an S3 bucket (s3://bucket/prefix): AWS, SeaweedFS, MinIO, Ceph and the like, through boto3.

Opened by `components.storage.store.open_store`. Files lie under their own names, so that a server can load a model
straight from its URI; `manifest.json` is written last and only if there is none. One writer of a key at a time (a
lease): the other waits, then finds the same content there or is told of other content. Limits: the server must know
conditional writes.
"""

import fcntl
import hashlib
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from email.utils import parsedate_to_datetime
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import botocore.exceptions as failures

from components.errors import BadInputError, PipelineError
from components.storage.config import StoreConfig
from components.storage.disk import disk_errors, snapshot
from components.storage.lease import hold
from components.storage.manifest import (
    MANIFEST,
    DamagedArtifactError,
    FileEntry,
    Manifest,
    checked_manifest,
    find_fault,
    make_manifest,
    require_same,
    verify_in_place,
)
from components.storage.references import Reference
from components.storage.s3_client import Bucket, error_code, explain_s3_error, make_client, s3_errors
from components.storage.s3_small import SMALL, SmallObjects
from components.storage.s3_transfer import (
    SHA256_METADATA,
    Wanted,
    download_files,
    upload_files,
    uploaded_before,
)
from components.storage.store import Note, NoteChangedError, check_key, key_within

_NOTES = ".notes"
_CHUNK = 1 << 20
_DELETE_BATCH = 1000
_WAIT_FOR_WRITER_S = 3600
_PROBE_ATTEMPTS = 2
_MEND = "remove it (grpo store verify --remove-damaged) and run again from the step that wrote it"


class S3Store:
    """The artifacts below one prefix of a bucket.

    Attributes:
        uri: `s3://bucket/prefix`, no trailing slash.
        config: what it was opened with.
    """

    def __init__(self, config: StoreConfig) -> None:
        """Name the place; nothing is contacted yet.

        Args:
            config: its `uri` begins with s3://.
        """
        self.uri = config.uri.rstrip("/")
        self.config = config
        self._bucket_name, _, prefix = self.uri.removeprefix("s3://").partition("/")
        self._prefix = prefix.strip("/") + "/" if prefix.strip("/") else ""

    # ---- artifacts

    def put(self, directory: Path, key: str, *, provenance: Mapping[str, Any]) -> Reference:
        """See `ArtifactStore.put`."""
        before = snapshot(directory)
        manifest = make_manifest(directory, provenance)
        content = manifest.to_bytes()
        names = {entry.path for entry in manifest.files}
        with disk_errors(directory), self._errors(check_key(key)):
            if self._is_complete(key, manifest):
                return self._reference(key, content)
            self._refuse_nesting(key)
            with hold(self, f"put/{key}", what=f"writing {self.uri}/{key}", wait_s=_WAIT_FOR_WRITER_S) as lease:
                # Looked at again: whoever held the lease may just have finished.
                if not self._is_complete(key, manifest):
                    sizes = {path: size for path, (size, _etag) in self._list(key).items()}
                    stale = [path for path in sizes if path not in names]
                    for path in stale:
                        if path.endswith(f"/{MANIFEST}"):
                            raise BadInputError(f"key {key!r} has the artifact {path} inside; choose a key beside it")
                    there = uploaded_before(self._bucket, self._full(key), manifest.files, sizes)
                    missing = [entry for entry in manifest.files if entry.path not in there]
                    upload_files(self._bucket, self._full(key), directory, missing)
                    if snapshot(directory) != before:
                        raise PipelineError(
                            f"{directory} changed while it was stored; run again when nothing writes to it"
                        )
                    self._delete_objects([f"{self._full(key)}/{path}" for path in stale])
                    lease.check()
                    self._put_manifest(key, content)
        return self._reference(key, content)

    def put_in_place(
        self, directory: Path, key: str, *, provenance: Mapping[str, Any], only: tuple[str, ...] | None = None
    ) -> Reference:
        """See `ArtifactStore.put_in_place`."""
        content = make_manifest(directory, provenance, only=only, location=str(directory.resolve())).to_bytes()
        with self._errors(check_key(key)):
            self._put_manifest(key, content)
        return self._reference(key, content)

    def find(self, key: str) -> Reference | None:
        """See `ArtifactStore.find`."""
        with self._errors(check_key(key)):
            content = self._manifest_bytes(key)
        return None if content is None else self._reference(key, content)

    def keys(self, prefix: str = "") -> list[str]:
        """See `ArtifactStore.keys`."""
        folder = check_key(prefix.rstrip("/")) + "/" if prefix.rstrip("/") else ""
        with self._errors(folder):
            names = [name[len(self._prefix) :] for name, _size, _etag, _time in self._objects(self._prefix + folder)]
        folders = {name.removesuffix("/" + MANIFEST) for name in names if name.endswith("/" + MANIFEST)}
        return sorted(name for name in folders if not _hidden(name) and not _above(name) & folders)

    def read_manifest(self, reference: Reference | str) -> Manifest:
        """See `ArtifactStore.read_manifest`."""
        key = self._key(reference)
        with self._errors(key):
            content = self._manifest_bytes(key)
        digest = reference.digest if isinstance(reference, Reference) else None
        return checked_manifest(content, f"{self.uri}/{key}", digest)

    def written_s_ago(self, key: str) -> float:
        """See `ArtifactStore.written_s_ago`."""
        with self._errors(check_key(key)):
            head = self._client.head_object(Bucket=self._bucket_name, Key=f"{self._full(key)}/{MANIFEST}")
        return _age_s(head)

    def verify(self, reference: Reference | str) -> Manifest:
        """See `ArtifactStore.verify`; streams every object, keeps nothing."""
        manifest = self.read_manifest(reference)
        key = self._key(reference)
        if manifest.location is not None:
            verify_in_place(manifest, f"{self.uri}/{key}")
            return manifest
        with self._errors(key):
            there = self._list(key)
            names = {entry.path for entry in manifest.files}
            fault = next((f"{path!r} is not in the manifest" for path in there if path not in names), None)
            for entry in manifest.files:
                if entry.path not in there:
                    fault = fault or f"{entry.path!r} is missing"
                elif there[entry.path][0] != entry.size:
                    fault = fault or f"{entry.path!r} has {there[entry.path][0]} bytes, its manifest says {entry.size}"
            if fault is None:
                objects = SmallObjects(self._bucket)
                with ThreadPoolExecutor(self.config.concurrency) as pool:
                    hashes = pool.map(partial(self._stored_sha256, objects, key), manifest.files)
                    for entry, sha256 in zip(manifest.files, hashes, strict=True):
                        if sha256 != entry.sha256:
                            fault = fault or (
                                f"{entry.path!r} has sha256 {sha256[:12]}..., its manifest says {entry.sha256[:12]}..."
                            )
        if fault is not None:
            raise DamagedArtifactError(f"{self.uri}/{key}: object {fault}; {_MEND}")
        return manifest

    def fetch(self, reference: Reference, cache: Path) -> Path:
        """See `ArtifactStore.fetch`. The folder in the cache is named by the artifact's digest."""
        manifest = self.read_manifest(reference)
        if manifest.location is not None:
            return verify_in_place(manifest, reference.uri)
        key = self._key(reference)
        target = cache / reference.digest
        wanted = [
            Wanted(f"{self._full(key)}/{entry.path}", entry.path, entry.size, entry.sha256) for entry in manifest.files
        ]
        with disk_errors(cache), exclusively(target):
            if target.is_dir():
                if find_fault(target, manifest) is None:
                    return target
                # A damaged copy is only a copy.
                shutil.rmtree(target)
            work = target.with_name(target.name + ".partial")
            with self._errors(key):
                files = download_files(self._bucket, wanted, work)
            # In the cache the manifest lies beside the files, as in the store.
            (files / MANIFEST).write_bytes(manifest.to_bytes())
            files.rename(target)
            shutil.rmtree(work)
        return target

    def delete(self, key: str) -> None:
        """See `ArtifactStore.delete`."""
        with self._errors(check_key(key)):
            if self._manifest_bytes(key) is None:
                return
            self._client.delete_object(Bucket=self._bucket_name, Key=f"{self._full(key)}/{MANIFEST}")
            self._delete_objects([f"{self._full(key)}/{path}" for path in self._list(key)])

    def clean(self, older_than_s: float, *, dry_run: bool) -> list[str]:
        """See `ArtifactStore.clean`: multipart uploads never ended, and objects we wrote beside no manifest."""
        with self._errors(""):
            now = self._now()
            found = self._abort_uploads(now, older_than_s, dry_run=dry_run)
            complete = tuple(f"{self._prefix}{key}/" for key in self.keys())
            old = [
                name
                for name, _size, _etag, time in self._objects(self._prefix)
                if (now - time).total_seconds() > older_than_s
                and not name.startswith(complete)
                and not name.startswith(f"{self._prefix}{_NOTES}/")
            ]
            # Other programs may share the prefix: only what carries our mark is ours to remove.
            with ThreadPoolExecutor(self.config.concurrency) as pool:
                ours = [name for name, is_ours in zip(old, pool.map(self._has_our_mark, old), strict=True) if is_ours]
            if not dry_run:
                self._delete_objects(ours)
        return sorted(found + [name[len(self._prefix) :] for name in ours])

    def check_writable(self) -> None:
        """See `ArtifactStore.check_writable`. Tries twice only, so that a wrong endpoint is told at once."""
        client = make_client(self.config, attempts=_PROBE_ATTEMPTS)
        name = f"{self._prefix}{_NOTES}/probe-{secrets.token_hex(4)}"
        try:
            client.put_object(Bucket=self._bucket_name, Key=name, Body=b"grpo", IfNoneMatch="*")
            client.delete_object(Bucket=self._bucket_name, Key=name)
        except (failures.BotoCoreError, failures.ClientError) as error:
            reason = explain_s3_error(error, f"store {self.uri} cannot be written", client.meta.endpoint_url)
            raise BadInputError(str(reason)) from error

    # ---- notes

    def read_note(self, name: str) -> Note | None:
        """See `ArtifactStore.read_note`."""
        with self._errors(name):
            try:
                answer = self._client.get_object(Bucket=self._bucket_name, Key=self._note_key(name))
                return Note(answer["Body"].read(), answer["ETag"], _age_s(answer))
            except failures.ClientError as error:
                if error_code(error) == "NoSuchKey":
                    return None
                raise

    def write_note(self, name: str, content: bytes, *, replaces: str | None) -> str:
        """See `ArtifactStore.write_note`."""
        condition = {"IfNoneMatch": "*"} if replaces is None else {"IfMatch": replaces}
        with self._errors(name):
            try:
                answer = self._client.put_object(
                    Bucket=self._bucket_name, Key=self._note_key(name), Body=content, **condition
                )
                return str(answer["ETag"])
            except failures.ClientError as error:
                if not _lost_the_race(error):
                    raise
                # The answer to our own write may have been lost and the write repeated.
                note = self.read_note(name)
                if note is not None and note.content == content:
                    return note.tag
                raise NoteChangedError(name) from error

    def delete_note(self, name: str, *, tag: str) -> None:
        """See `ArtifactStore.delete_note`."""
        with self._errors(name):
            try:
                self._client.delete_object(Bucket=self._bucket_name, Key=self._note_key(name), IfMatch=tag)
            except failures.ClientError as error:
                if _lost_the_race(error):
                    raise NoteChangedError(name) from error
                raise

    # ---- inside

    @cached_property
    def _client(self) -> Any:
        return make_client(self.config)

    @cached_property
    def _bucket(self) -> Bucket:
        return Bucket(self._client, self._bucket_name, self.config)

    def _errors(self, key: str) -> Any:
        return s3_errors(f"{self.uri}/{key}".rstrip("/"), self._client.meta.endpoint_url)

    def _full(self, key: str) -> str:
        return self._prefix + key

    def _note_key(self, name: str) -> str:
        return f"{self._prefix}{_NOTES}/{check_key(name)}"

    def _key(self, reference: Reference | str) -> str:
        return check_key(reference) if isinstance(reference, str) else key_within(self.uri, reference)

    def _reference(self, key: str, content: bytes) -> Reference:
        return Reference(f"{self.uri}/{key}", hashlib.sha256(content).hexdigest())

    def _manifest_bytes(self, key: str) -> bytes | None:
        try:
            answer = self._client.get_object(Bucket=self._bucket_name, Key=f"{self._full(key)}/{MANIFEST}")
            return bytes(answer["Body"].read())
        except failures.ClientError as error:
            if error_code(error) == "NoSuchKey":
                return None
            raise

    def _is_complete(self, key: str, manifest: Manifest) -> bool:
        """Whether the manifest is there and its objects too, by size.

        Raises:
            PipelineError: when other content is there.
        """
        content = self._manifest_bytes(key)
        if content is None:
            return False
        require_same(content, manifest.to_bytes(), f"{self.uri}/{key}")
        there = self._list(key)
        return all(there.get(entry.path, (-1, ""))[0] == entry.size for entry in manifest.files)

    def _put_manifest(self, key: str, content: bytes) -> None:
        """Write the manifest if there is none.

        Raises:
            PipelineError: when another writer was first, with other content.
        """
        try:
            self._client.put_object(
                Bucket=self._bucket_name,
                Key=f"{self._full(key)}/{MANIFEST}",
                Body=content,
                ContentType="application/json",
                Metadata={SHA256_METADATA: hashlib.sha256(content).hexdigest()},
                IfNoneMatch="*",
            )
        except failures.ClientError as error:
            if not _lost_the_race(error):
                raise
            there = self._manifest_bytes(key)
            if there is None:
                raise PipelineError(f"{self.uri}/{key} was deleted while it was written; run again") from error
            require_same(there, content, f"{self.uri}/{key}")

    def _refuse_nesting(self, key: str) -> None:
        for above in sorted(_above(key)):
            if self._manifest_bytes(above) is not None:
                raise BadInputError(f"key {key!r} lies inside the artifact {self.uri}/{above}; choose a key beside it")

    def _objects(self, prefix: str) -> Iterator[tuple[str, int, str, datetime]]:
        """Full key, size, ETag and time of every object below a prefix."""
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket_name, Prefix=prefix)
        for page in pages:
            for item in page.get("Contents", []):
                # Some programs mark folders by empty objects with a trailing slash.
                if not item["Key"].endswith("/"):
                    yield item["Key"], item["Size"], item["ETag"], item["LastModified"]

    def _list(self, key: str) -> dict[str, tuple[int, str]]:
        """Size and ETag of each object of an artifact by path, its manifest left out."""
        prefix = self._full(key) + "/"
        found = {name[len(prefix) :]: (size, etag) for name, size, etag, _time in self._objects(prefix)}
        found.pop(MANIFEST, None)
        return found

    def _stored_sha256(self, objects: SmallObjects, key: str, entry: FileEntry) -> str:
        name = f"{self._full(key)}/{entry.path}"
        if entry.size <= SMALL:
            return hashlib.sha256(objects.read(name)).hexdigest()
        digest = hashlib.sha256()
        answer = self._client.get_object(Bucket=self._bucket_name, Key=name)
        for chunk in answer["Body"].iter_chunks(_CHUNK):
            digest.update(chunk)
        return digest.hexdigest()

    def _delete_objects(self, names: list[str]) -> None:
        for start in range(0, len(names), _DELETE_BATCH):
            batch = [{"Key": name} for name in names[start : start + _DELETE_BATCH]]
            answer = self._client.delete_objects(Bucket=self._bucket_name, Delete={"Objects": batch, "Quiet": True})
            for fault in answer.get("Errors", []):
                raise PipelineError(
                    f"s3://{self._bucket_name}/{fault['Key']} could not be deleted ({fault['Code']}); give the "
                    "credentials the right to delete"
                )

    def _abort_uploads(self, now: datetime, older_than_s: float, *, dry_run: bool) -> list[str]:
        found = []
        pages = self._client.get_paginator("list_multipart_uploads")
        for page in pages.paginate(Bucket=self._bucket_name, Prefix=self._prefix):
            for upload in page.get("Uploads", []):
                if (now - upload["Initiated"]).total_seconds() > older_than_s:
                    found.append(f"{upload['Key'][len(self._prefix) :]} (unfinished upload)")
                    if not dry_run:
                        self._client.abort_multipart_upload(
                            Bucket=self._bucket_name, Key=upload["Key"], UploadId=upload["UploadId"]
                        )
        return found

    def _has_our_mark(self, name: str) -> bool:
        head = self._client.head_object(Bucket=self._bucket_name, Key=name)
        return SHA256_METADATA in head["Metadata"]

    def _now(self) -> datetime:
        """The store's own clock."""
        return _date(self._client.head_bucket(Bucket=self._bucket_name))


@contextmanager
def exclusively(target: Path) -> Iterator[None]:
    """Let one process at a time fill a folder of the cache; the others wait, then find it there."""
    target.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(target.with_name(target.name + ".lock"), os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _above(key: str) -> set[str]:
    parts = key.split("/")
    return {"/".join(parts[:depth]) for depth in range(1, len(parts))}


def _hidden(key: str) -> bool:
    return any(part.startswith(".") for part in key.split("/"))


def _lost_the_race(error: failures.ClientError) -> bool:
    return error_code(error) in ("PreconditionFailed", "ConditionalRequestConflict", "412", "409", "NoSuchKey")


def _date(answer: Mapping[str, Any]) -> datetime:
    return parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"])


def _age_s(answer: Mapping[str, Any]) -> float:
    """Seconds since an object was written, by the store's clock alone."""
    return max(0.0, float((_date(answer) - answer["LastModified"]).total_seconds()))

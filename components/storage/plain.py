"""Objects of an S3 bucket that are no artifact of ours: a folder of model files, a data file, named by s3:// URI.

Called where a person names a source: importing a model, preparing a dataset. Nobody recorded hashes for such objects,
so a download is pinned to the versions (ETags) that were listed, and `Source.identity` tells whether any changed.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from components.errors import BadInputError
from components.sections import content_hash
from components.storage.config import StoreConfig
from components.storage.disk import disk_errors
from components.storage.manifest import MANIFEST
from components.storage.s3 import exclusively
from components.storage.s3_client import Bucket, make_client, s3_errors
from components.storage.s3_transfer import Wanted, download_files
from components.storage.store import default_cache


@dataclass(frozen=True)
class Source:
    """What an s3:// URI names right now.

    Attributes:
        uri: as given, without a trailing slash.
        objects: sorted by path.
        is_file: whether the URI names one object rather than a folder of them.
    """

    uri: str
    objects: tuple[Wanted, ...]
    is_file: bool

    @property
    def identity(self) -> str:
        """64 hex digits that change when any object does."""
        return content_hash(self.uri, [[item.path, item.size, item.etag] for item in self.objects])

    @property
    def is_artifact(self) -> bool:
        """Whether it is an artifact of a store of ours: `open_store` and `fetch` then verify it."""
        return any(item.path == MANIFEST for item in self.objects)


def find_source(uri: str, config: StoreConfig | None = None) -> Source:
    """List what an s3:// URI names.

    Args:
        uri: s3://bucket/key of one object or of a folder.
        config: S3 options where the environment does not give them; its `uri` is not used.

    Raises:
        BadInputError: nothing is there, or the bucket or the credentials are wrong.
        PipelineError: the endpoint does not answer.
    """
    uri = uri.rstrip("/")
    bucket = _bucket(uri, config)
    key = uri.removeprefix("s3://").partition("/")[2]
    with s3_errors(uri, bucket.client.meta.endpoint_url):
        pages = bucket.client.get_paginator("list_objects_v2").paginate(Bucket=bucket.name, Prefix=key)
        listed = [item for page in pages for item in page.get("Contents", []) if not item["Key"].endswith("/")]
    folder = f"{key}/" if key else ""
    single = [item for item in listed if item["Key"] == key]
    chosen = single or [item for item in listed if item["Key"].startswith(folder)]
    if not chosen:
        raise BadInputError(f"{uri}: no object is there; check the bucket and the key")
    wanted = []
    for item in chosen:
        path = PurePosixPath(key).name if single else item["Key"][len(folder) :]
        if ".." in path.split("/") or path.startswith("/") or "" in path.split("/"):
            raise BadInputError(f"s3://{bucket.name}/{item['Key']} cannot be a file name; rename the object")
        wanted.append(Wanted(item["Key"], path, item["Size"], None, item["ETag"]))
    return Source(uri, tuple(sorted(wanted, key=lambda item: item.path)), bool(single))


def download_source(source: Source, cache: Path | None = None, *, config: StoreConfig | None = None) -> Path:
    """Download what `find_source` found; a second time it is there already.

    Args:
        source: what to download.
        cache: folder for downloads (default: see `components.storage.store.default_cache`).
        config: as for `find_source`.

    Returns:
        The file, or the folder.

    Raises:
        BadInputError: no space left.
        PipelineError: an object changed meanwhile, or the store failed.
    """
    cache = cache or default_cache()
    target = cache / f"source-{source.identity}"
    bucket = _bucket(source.uri, config)
    with disk_errors(cache), exclusively(target):
        if not target.is_dir():
            work = target.with_name(target.name + ".partial")
            with s3_errors(source.uri, bucket.client.meta.endpoint_url):
                download_files(bucket, source.objects, work).rename(target)
            shutil.rmtree(work)
    return target / source.objects[0].path if source.is_file else target


def _bucket(uri: str, config: StoreConfig | None) -> Bucket:
    name = uri.removeprefix("s3://").partition("/")[0]
    options = (config or StoreConfig()).model_dump(exclude={"uri"})
    config = StoreConfig(uri=uri, **options)
    return Bucket(make_client(config), name, config)

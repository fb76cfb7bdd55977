"""The `store` section of a run config: where artifacts live and how to reach them.

Read by `components.storage.store.open_store` and by whoever starts steps (`environment` says what a container needs).
Limits: holds no credential and refuses one in the URI; credentials come from the standard AWS chain (environment,
profile, web identity, instance role).
"""

import re
from typing import Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from components.sections import Section

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")


class StoreConfig(Section):
    """Where artifacts are stored."""

    uri: str = ".grpo/store"
    """A folder (path or file:// URI; a relative one starts from the working directory) or s3://bucket/prefix."""

    endpoint_url: str | None = None
    """S3 endpoint, such as http://127.0.0.1:8333; without it the environment variable AWS_ENDPOINT_URL, else AWS."""

    region: str | None = None
    """S3 region; without it AWS_REGION, AWS_DEFAULT_REGION or the profile's, else us-east-1."""

    addressing: Literal["auto", "path", "virtual"] = "auto"
    """S3 addressing: `path` (endpoint/bucket), `virtual` (bucket.endpoint); `auto` is path for a custom endpoint."""

    ca_bundle: str | None = None
    """File of CA certificates to check the S3 endpoint with; without it AWS_CA_BUNDLE, else the system's."""

    concurrency: int = Field(default=16, ge=1, le=128)
    """S3 requests in flight at once."""

    part_size_mib: int = Field(default=16, ge=5, le=5120)
    """Size in MiB of one part of a large file, up and down."""

    attempts: int = Field(default=8, ge=1, le=50)
    """Tries for one S3 request, with exponential backoff of at most 20 seconds between two."""

    @field_validator("uri")
    @classmethod
    def _known_place(cls, uri: str) -> str:
        if not uri.strip():
            raise ValueError("uri is empty; write a folder such as .grpo/store, or s3://bucket/prefix")
        scheme, separator, rest = uri.partition("://")
        if not separator:
            return uri
        if scheme not in ("file", "s3"):
            raise ValueError(
                f"uri {uri!r} is neither a folder, file:// nor s3://; write for example s3://bucket/prefix"
            )
        if scheme == "file" and not rest.startswith("/"):
            raise ValueError(f"uri {uri!r} names no absolute folder; write file:///absolute/folder (three slashes)")
        if scheme == "s3":
            bucket = rest.partition("/")[0]
            if "@" in bucket:
                raise ValueError("uri holds credentials; put them in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
            if not _BUCKET.fullmatch(bucket):
                raise ValueError(f"uri {uri!r} names no valid bucket; write s3://bucket/prefix, bucket in lower case")
        return uri

    @field_validator("endpoint_url")
    @classmethod
    def _plain_endpoint(cls, url: str | None) -> str | None:
        if url is None:
            return None
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"endpoint_url {url!r} is no http(s) URL; write for example http://127.0.0.1:8333")
        if parts.username or parts.password:
            raise ValueError("endpoint_url holds credentials; put them in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
        return url

    @model_validator(mode="after")
    def _s3_options_need_s3(self) -> Self:
        if not self.uri.startswith("s3://") and self.endpoint_url is not None:
            raise ValueError(
                f"store.endpoint_url is set and store.uri {self.uri!r} is a folder; write uri: s3://bucket/prefix, "
                "or remove endpoint_url"
            )
        return self

    def environment(self) -> dict[str, str]:
        """The environment variables (no credential) that let another process reach the same S3 endpoint."""
        pairs = {
            "AWS_ENDPOINT_URL": self.endpoint_url,
            "AWS_REGION": self.region,
            "AWS_DEFAULT_REGION": self.region,
            "AWS_CA_BUNDLE": self.ca_bundle,
        }
        return {name: value for name, value in pairs.items() if value is not None}

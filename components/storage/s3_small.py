"""Small objects with about half the work: boto3 signs a URL for one, urllib3 sends it.

Called by the S3 transfers, where a folder may have thousands of files and boto3's own work for a request is what takes
the time. Whatever does not succeed at once goes to boto3's client, whose retries and errors then count, and the short
way is not tried again. Limits: objects up to `SMALL` bytes; not through a proxy.
"""

import base64
import os
import urllib.request
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import urllib3
from botocore.httpsession import where as botocore_ca_bundle

from components.storage.s3_client import CONNECT_TIMEOUT_S, READ_TIMEOUT_S, Bucket

SMALL = 1 << 20
_VALID_S = 900
_OK = 200


class SmallObjects:
    """Reads and writes small objects of one bucket, from many threads.

    Attributes:
        bucket: the bucket.
    """

    def __init__(self, bucket: Bucket) -> None:
        """Prepare the connections; none is made yet.

        Args:
            bucket: the bucket, its client and options.
        """
        self.bucket = bucket
        host = urlsplit(bucket.client.meta.endpoint_url).hostname or ""
        self._direct = not urllib.request.getproxies() or bool(urllib.request.proxy_bypass(host))
        authorities = bucket.config.ca_bundle or os.environ.get("AWS_CA_BUNDLE") or os.environ.get("REQUESTS_CA_BUNDLE")
        self._pool = urllib3.PoolManager(
            maxsize=bucket.config.concurrency,
            block=True,
            ca_certs=authorities or botocore_ca_bundle(),
            timeout=urllib3.Timeout(connect=CONNECT_TIMEOUT_S, read=READ_TIMEOUT_S),
            retries=False,
        )

    def read(self, key: str, etag: str | None = None) -> bytes:
        """The content of an object.

        Args:
            key: its full key.
            etag: version it must be; None for any.

        Raises:
            botocore.exceptions.ClientError, BotoCoreError: the store failed in every try.
        """
        condition = {} if etag is None else {"IfMatch": etag}
        answer = self._send("get_object", "GET", key, condition, {} if etag is None else {"If-Match": etag})
        if answer is not None:
            return answer
        found = self.bucket.client.get_object(Bucket=self.bucket.name, Key=key, **condition)
        return bytes(found["Body"].read())

    def write(self, key: str, content: bytes, sha256: bytes, metadata: Mapping[str, str]) -> None:
        """Write an object; the store compares its checksum with what arrived and refuses anything else.

        Args:
            key: its full key.
            content: its bytes.
            sha256: their digest, 32 bytes.
            metadata: recorded with it.

        Raises:
            botocore.exceptions.ClientError, BotoCoreError: the store failed in every try.
        """
        checksum = base64.b64encode(sha256).decode()
        options = {"ChecksumSHA256": checksum, "Metadata": dict(metadata)}
        headers = {"x-amz-checksum-sha256": checksum, **{f"x-amz-meta-{name}": text for name, text in metadata.items()}}
        if self._send("put_object", "PUT", key, options, headers, content) is None:
            self.bucket.client.put_object(Bucket=self.bucket.name, Key=key, Body=content, **options)

    def _send(
        self,
        operation: str,
        method: str,
        key: str,
        options: Mapping[str, Any],
        headers: Mapping[str, str],
        content: bytes | None = None,
    ) -> bytes | None:
        """The body of the answer, or None when boto3's client must be asked instead."""
        if not self._direct:
            return None
        url = self.bucket.client.generate_presigned_url(
            operation, Params={"Bucket": self.bucket.name, "Key": key, **options}, ExpiresIn=_VALID_S
        )
        try:
            answer = self._pool.request(method, url, body=content, headers=dict(headers))
        except urllib3.exceptions.HTTPError:
            self._direct = False
            return None
        if answer.status != _OK:
            self._direct = False
            return None
        return bytes(answer.data)

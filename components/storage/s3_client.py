"""The boto3 client of the S3 store, and what its failures are told as.

Called by the S3 rooms beside it. Credentials come from the standard AWS chain (environment with session token, profile,
web identity as for IRSA, instance role). Limits: a HEAD request that is refused carries no reason, so its message names
the likely ones.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import botocore.exceptions as failures
from botocore.config import Config

from components.errors import BadInputError, PipelineError
from components.storage.config import StoreConfig

_DEFAULT_REGION = "us-east-1"
CONNECT_TIMEOUT_S = 10
READ_TIMEOUT_S = 60

_CREDENTIALS = (
    "give credentials that may read and write it (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile, or a role of "
    "the service account)"
)
_BAD_INPUT = {
    "NoSuchBucket": "the bucket does not exist; create it, or set store.uri to one that does",
    "InvalidBucketName": "the bucket's name is not valid; set store.uri to s3://bucket/prefix",
    "InvalidAccessKeyId": "the store does not know this access key; check AWS_ACCESS_KEY_ID",
    "SignatureDoesNotMatch": "the secret key is wrong; check AWS_SECRET_ACCESS_KEY",
    "AccessDenied": f"access is denied; {_CREDENTIALS}",
    "AllAccessDisabled": f"access is denied; {_CREDENTIALS}",
    "403": f"access is denied (wrong key, missing right, or a wrong clock); {_CREDENTIALS}",
    "ExpiredToken": "the session token has expired; get a new one (AWS_SESSION_TOKEN) and run again",
    "ExpiredTokenException": "the session token has expired; get a new one (AWS_SESSION_TOKEN) and run again",
    "InvalidToken": "the session token is not valid; get a new one (AWS_SESSION_TOKEN) and run again",
    "RequestTimeTooSkewed": "this machine's clock is more than 15 minutes off the store's; set it (timedatectl, NTP)",
    "RequestExpired": "this machine's clock is off the store's; set it (timedatectl, NTP)",
    "PermanentRedirect": "the bucket lies in another region; set store.region",
    "AuthorizationHeaderMalformed": "the bucket lies in another region; set store.region",
    "IllegalLocationConstraintException": "the bucket lies in another region; set store.region",
    "QuotaExceeded": "the bucket has no space left; free some (grpo store gc), or raise its quota",
    "QuotaExceededException": "the bucket has no space left; free some (grpo store gc), or raise its quota",
    "XMinioStorageFull": "the store's disk is full; free some (grpo store gc), or add a disk",
    "InsufficientStorage": "the store's disk is full; free some (grpo store gc), or add a disk",
    "507": "the store's disk is full; free some (grpo store gc), or add a disk",
}
_FAILED = {
    "NoSuchKey": "an object is not there; it was deleted meanwhile: run again from the step that wrote it",
    "404": "an object is not there; it was deleted meanwhile: run again from the step that wrote it",
    "PreconditionFailed": "an object changed while it was read; run again from the step that wrote it",
    "InvalidRange": "an object is shorter than it was when stored; run again from the step that wrote it",
    "BadDigest": "what arrived is not what was sent; check the network, then run again: what is complete is kept",
    "NoSuchUpload": "the store forgot an upload that was under way; run again: what is complete is kept",
    "NotImplemented": "the store lacks conditional writes (If-None-Match), which this needs; use a newer one",
}


@dataclass(frozen=True)
class Bucket:
    """A client and the bucket it works on.

    Attributes:
        client: boto3 S3 client.
        name: the bucket.
        config: concurrency, part size and attempts.
    """

    client: Any
    name: str
    config: StoreConfig


def make_client(config: StoreConfig, *, attempts: int | None = None) -> Any:
    """A boto3 S3 client with retries, timeouts and enough connections.

    Args:
        config: where and how; what it leaves out comes from the environment.
        attempts: tries for one request, when other than the config's.

    Raises:
        BadInputError: the CA bundle is missing, or a profile or endpoint is malformed.
    """
    if config.ca_bundle is not None and not Path(config.ca_bundle).is_file():
        raise BadInputError(f"store.ca_bundle: {config.ca_bundle} is no file; name the file with the CA's certificates")
    options = Config(
        retries={"mode": "standard", "max_attempts": attempts or config.attempts},
        connect_timeout=CONNECT_TIMEOUT_S,
        read_timeout=READ_TIMEOUT_S,
        max_pool_connections=config.concurrency + 4,
        tcp_keepalive=True,
        # The default would sign URLs the old way (version 2), which many stores refuse.
        signature_version="s3v4",
        # What comes down is compared with the sha256 of its manifest; boto3's own check beside it costs time only.
        response_checksum_validation="when_required",
        s3={"addressing_style": config.addressing},
    )
    with s3_errors(config.uri):
        session = boto3.session.Session()
        return session.client(
            "s3",
            region_name=config.region or session.region_name or _DEFAULT_REGION,
            endpoint_url=config.endpoint_url,
            verify=config.ca_bundle,
            config=options,
        )


@contextmanager
def s3_errors(where: str, endpoint: str | None = None) -> Iterator[None]:
    """Turn a boto3 error of the body into one sentence that names the mend.

    Args:
        where: URI of what is read or written, for the message.
        endpoint: URL of the store, for the message.

    Raises:
        BadInputError: a person must mend it (bucket, key, right, clock, space).
        PipelineError: trying again may help (network, store down or busy, object gone).
    """
    try:
        yield
    except (failures.BotoCoreError, failures.ClientError, ValueError) as error:
        if isinstance(error, ValueError) and "endpoint" not in str(error).lower():
            raise
        raise explain_s3_error(error, where, endpoint) from error


def error_code(error: Exception) -> str:
    """The S3 error code of a ClientError (`NoSuchKey`, or the status such as `404` for HEAD), else an empty string."""
    if isinstance(error, failures.ClientError):
        return str(error.response.get("Error", {}).get("Code", ""))
    return ""


def explain_s3_error(error: Exception, where: str, endpoint: str | None = None) -> PipelineError:
    """The error to raise in place of boto3's `error`, which happened while `where` was read or written."""
    code = error_code(error)
    if code in _BAD_INPUT:
        return BadInputError(f"{where}: {_BAD_INPUT[code]}")
    if code in _FAILED:
        return PipelineError(f"{where}: {_FAILED[code]}")
    if isinstance(error, failures.ClientError):
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        if status >= 500:
            return PipelineError(
                f"{where}: the store failed or is overloaded (status {status} {code}) in every try; run again later: "
                "what is complete is kept"
            )
        return PipelineError(f"{where}: the store refused ({code}: {error.response.get('Error', {}).get('Message')})")
    if isinstance(error, failures.NoCredentialsError | failures.PartialCredentialsError):
        return BadInputError(f"{where}: no complete credentials were found; {_CREDENTIALS}")
    if isinstance(
        error, failures.CredentialRetrievalError | failures.ProfileNotFound | failures.UnauthorizedSSOTokenError
    ):
        return BadInputError(f"{where}: credentials could not be had ({error}); {_CREDENTIALS}")
    if isinstance(error, failures.SSLError):
        return BadInputError(
            f"{where}: the certificate of {endpoint or 'the endpoint'} is not trusted; set store.ca_bundle or "
            "AWS_CA_BUNDLE to the file with its CA's certificates"
        )
    if isinstance(error, failures.HTTPClientError | failures.ConnectionError | failures.EndpointConnectionError):
        return PipelineError(
            f"{where}: S3 endpoint {endpoint or ''} does not answer ({type(error).__name__}); check that it is up and "
            "that store.endpoint_url or AWS_ENDPOINT_URL names it, then run again: what is complete is kept"
        )
    if isinstance(error, failures.InvalidRegionError | ValueError):
        return BadInputError(f"{where}: {error}; check store.region and store.endpoint_url (AWS_ENDPOINT_URL)")
    return PipelineError(f"{where}: {type(error).__name__}: {error}; run again: what is complete is kept")

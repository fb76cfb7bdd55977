"""The store section: what it accepts, and that it holds no credential."""

import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from components.errors import BadInputError
from components.storage.config import StoreConfig
from components.storage.references import Reference
from components.storage.store import fetch, open_store


@pytest.mark.parametrize("uri", [".grpo/store", "/abs/x", "file:///abs/x", "s3://bucket", "s3://my-bucket.x/a/b"])
def test_places_that_are_accepted(uri: str) -> None:
    assert StoreConfig(uri=uri).uri == uri


@pytest.mark.parametrize(
    ("uri", "says"),
    [
        ("", "is empty"),
        ("gs://bucket/x", "neither a folder, file:// nor s3://"),
        ("file://relative/x", "three slashes"),
        ("s3://", "no valid bucket"),
        ("s3://Bucket_X/a", "lower case"),
        ("s3://key:secret@bucket/a", "holds credentials"),
    ],
)
def test_places_that_are_refused_with_the_mend(uri: str, says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        StoreConfig(uri=uri)
    with pytest.raises(BadInputError, match=says) as caught:
        open_store(uri)
    assert "\n" not in str(caught.value)


def test_credentials_and_nonsense_in_the_endpoint_are_refused() -> None:
    with pytest.raises(ValidationError, match="holds credentials"):
        StoreConfig(uri="s3://bucket", endpoint_url="http://me:secret@host:1")
    with pytest.raises(ValidationError, match="no http"):
        StoreConfig(uri="s3://bucket", endpoint_url="host:8333")
    with pytest.raises(ValidationError, match=r"store\.uri .* is a folder"):
        StoreConfig(endpoint_url="http://host:1")


def test_the_environment_for_another_process_names_only_what_is_set() -> None:
    config = StoreConfig(uri="s3://bucket", endpoint_url="http://host:1", region="eu-1")
    assert config.environment() == {
        "AWS_ENDPOINT_URL": "http://host:1",
        "AWS_REGION": "eu-1",
        "AWS_DEFAULT_REGION": "eu-1",
    }
    assert StoreConfig().environment() == {}


@pytest.mark.parametrize("text", ["", "x", "s3://b/k", "s3://b/k@sha256:12", "http://b/k@sha256:" + "0" * 64])
def test_a_malformed_reference_is_refused(text: str) -> None:
    with pytest.raises(BadInputError, match="is not of the form"):
        fetch(text)


def test_a_reference_survives_being_written_and_read() -> None:
    reference = Reference("s3://bucket/a@b/c", "0" * 64)
    assert Reference.parse(f" {reference}\n") == reference


def test_opening_a_folder_store_imports_no_boto3() -> None:
    code = "import sys; from components.storage.store import open_store; open_store('x'); print('boto3' in sys.modules)"
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"

"""Model versions in the MLflow registry: made once for the same weights and run, found again, tagged.

Called by register_model. The version's source is the weights' folder in the artifact store: MLflow copies nothing.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from components.errors import PipelineError

if TYPE_CHECKING:
    from mlflow import MlflowClient

WEIGHTS_TAG = "weights.manifest_sha256"
"""Tag with the digest of the weights' manifest: what a promotion and a server verify against."""


def register_version(
    client: "MlflowClient",
    name: str,
    *,
    source: str,
    digest: str,
    run_id: str,
    tags: Mapping[str, str],
    description: str,
) -> str:
    """Register weights as a version, or return the version that these weights of this run already have.

    Args:
        client: from `components.tracking.runs.connect`.
        name: the registered model's name.
        source: URI of the weights' folder.
        digest: sha256 of their manifest.
        run_id: the MLflow run they come from.
        tags: further tags; they are set anew on a version that is there already.
        description: text shown with the version.

    Returns:
        The version, such as "3".

    Raises:
        PipelineError: when the registry refuses.
    """
    from mlflow.exceptions import MlflowException

    try:
        known = find_version(client, name, digest=digest, run_id=run_id)
        if known is None:
            _ensure_model(client, name)
            made = client.create_model_version(
                name, source=source, run_id=run_id, tags={WEIGHTS_TAG: digest, **tags}, description=description
            )
            return str(made.version)
        present = client.get_model_version(name, known).tags
        for tag, value in tags.items():
            if present.get(tag) != value:
                client.set_model_version_tag(name, known, tag, value)
        return known
    except MlflowException as error:
        raise PipelineError(f"MLflow did not register {name}: {str(error).splitlines()[0]}") from error


def find_version(client: "MlflowClient", name: str, *, digest: str, run_id: str) -> str | None:
    """The version that holds these weights of this run.

    Args:
        client: from `components.tracking.runs.connect`.
        name: the registered model's name.
        digest: sha256 of the weights' manifest.
        run_id: the MLflow run.

    Returns:
        The newest such version, or None.
    """
    quoted = name.replace("'", "''")
    found = [
        int(version.version)
        for version in client.search_model_versions(f"name='{quoted}'")
        if version.run_id == run_id and version.tags.get(WEIGHTS_TAG) == digest
    ]
    return str(max(found)) if found else None


def _ensure_model(client: "MlflowClient", name: str) -> None:
    """Make the registered model when it is not there."""
    from mlflow.exceptions import MlflowException

    try:
        client.create_registered_model(name)
    except MlflowException as error:
        if getattr(error, "error_code", "") != "RESOURCE_ALREADY_EXISTS":
            raise

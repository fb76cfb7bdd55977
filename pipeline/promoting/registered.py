"""Registered versions as promotion and serving see them: which weights, which evidence, which run they came from.

Called by promotion.py, serving.py and evaluation.py of this room. Reads MLflow and the run's own config; changes
nothing but the alias, and that only through `set_champion`.
"""

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from components.errors import BadInputError, PipelineError
from components.storage.config import StoreConfig
from components.storage.references import Reference
from components.storage.store import default_cache, fetch
from components.tracking.registry import WEIGHTS_TAG

if TYPE_CHECKING:
    from mlflow import MlflowClient

    from components.judge_candidate.pairs import StoredEvaluation

CHAMPION = "champion"
"""The alias of the version that is served."""


@dataclass(frozen=True)
class RegisteredVersion:
    """A version of a registered model.

    Attributes:
        name: the registered model.
        version: such as "3".
        run_id: the MLflow run it came from.
        weights: the merged weights.
        tags: the version's tags.
    """

    name: str
    version: str
    run_id: str
    weights: Reference
    tags: dict[str, str]

    def __str__(self) -> str:
        return f"{self.name}/{self.version}"

    @property
    def evaluation(self) -> Reference:
        """The evaluation it was judged by.

        Raises:
            BadInputError: when the version has none.
        """
        text = self.tags.get("evaluation.reference")
        if not text:
            raise BadInputError(
                f"{self} has no tag evaluation.reference: it was not registered by grpo; register it so"
            )
        return Reference.parse(text)


def read_version(client: "MlflowClient", name: str, version: str) -> RegisteredVersion:
    """A version by its number.

    Args:
        client: from `pipeline.tracking.open_tracking`.
        name: the registered model.
        version: its number.

    Raises:
        BadInputError: there is no such version; says which there are.
    """
    known = versions(client, name)
    if version not in known:
        raise BadInputError(f"{name} has no version {version!r}; it has {', '.join(known)}")
    with mlflow_errors():
        found = client.get_model_version(name, version)
    tags = dict(found.tags)
    if WEIGHTS_TAG not in tags:
        raise BadInputError(f"{name}/{version} has no tag {WEIGHTS_TAG}: it was not registered by grpo")
    weights = Reference(str(found.source).rstrip("/"), tags[WEIGHTS_TAG])
    stated = tags.get("weights.reference")
    if stated and stated != str(weights):
        raise PipelineError(
            f"{name}/{version} names two weights: source {weights} and tag weights.reference {stated}; one of them was "
            "changed after registration, register the run again"
        )
    return RegisteredVersion(name, version, str(found.run_id or ""), weights, tags)


def versions(client: "MlflowClient", name: str) -> list[str]:
    """Numbers of a model's versions, oldest first.

    Args:
        client: from `pipeline.tracking.open_tracking`.
        name: the registered model.

    Raises:
        BadInputError: there is no such model; says which there are.
    """
    quoted = name.replace("'", "''")
    with mlflow_errors():
        found = sorted(int(version.version) for version in client.search_model_versions(f"name='{quoted}'"))
        names = [] if found else sorted(model.name for model in client.search_registered_models(max_results=50))
    if not found:
        raise BadInputError(
            f"no model {name!r} is registered; " + (f"there are: {', '.join(names)}" if names else "there is none yet")
        )
    return [str(number) for number in found]


def champion(client: "MlflowClient", name: str) -> str | None:
    """Number of the version with the alias `champion`, or None.

    Args:
        client: from `pipeline.tracking.open_tracking`.
        name: the registered model; it exists.
    """
    with mlflow_errors():
        found = dict(client.get_registered_model(name).aliases).get(CHAMPION)
    return None if found is None else str(found)


def set_champion(client: "MlflowClient", name: str, version: str | None) -> None:
    """Move the alias, or take it away.

    Args:
        client: from `pipeline.tracking.open_tracking`.
        name: the registered model.
        version: a number; None for no champion.
    """
    with mlflow_errors():
        if version is None:
            client.delete_registered_model_alias(name, CHAMPION)
        else:
            client.set_registered_model_alias(name, CHAMPION, version)


@contextlib.contextmanager
def mlflow_errors() -> Iterator[None]:
    """Turn what MLflow raises into one sentence.

    Raises:
        PipelineError: MLflow refused or did not answer.
    """
    from mlflow.exceptions import MlflowException

    try:
        yield
    except MlflowException as error:
        raise PipelineError(f"MLflow: {(str(error).splitlines() or ['no answer'])[0][:300]}") from error


def parse_name(text: str) -> tuple[str, str | None]:
    """`NAME`, `NAME/3` or `NAME@champion` as name and what follows it.

    Args:
        text: as a person writes it.

    Raises:
        BadInputError: it has another form.
    """
    separator = "@" if "@" in text else "/"
    name, found, which = text.partition(separator)
    if not name or (found and not which) or "/" in which or (separator == "/" and found and not which.isdigit()):
        raise BadInputError(f"{text!r} is not NAME, NAME/VERSION or NAME@{CHAMPION}; write for example quickstart/3")
    return name, which or None


def resolve(client: "MlflowClient", text: str) -> RegisteredVersion:
    """The version a person means: `NAME/3`, `NAME@alias`; `NAME` alone is its champion, else its newest version.

    Args:
        client: from `pipeline.tracking.open_tracking`.
        text: as a person writes it.

    Raises:
        BadInputError: there is no such version or alias.
    """
    name, which = parse_name(text)
    known = versions(client, name)
    if which is None:
        which = champion(client, name) or known[-1]
    elif not which.isdigit():
        aliases = dict(client.get_registered_model(name).aliases)
        if which not in aliases:
            mend = f"`grpo promote {name}` makes one" if which == CHAMPION else f"aliases: {', '.join(aliases) or '-'}"
            raise BadInputError(f"{name} has no {which}; {mend}")
        which = str(aliases[which])
    return read_version(client, name, which)


def run_config(client: "MlflowClient", version: RegisteredVersion) -> dict[str, Any]:
    """The config of the run a version came from.

    Args:
        client: from `pipeline.tracking.open_tracking`.
        version: the version.

    Raises:
        PipelineError: MLflow does not have it any more.
    """
    import yaml
    from mlflow.exceptions import MlflowException

    try:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(client.download_artifacts(version.run_id, "config.yaml", folder))
            content: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (MlflowException, OSError) as error:
        raise PipelineError(
            f"{version}: its run {version.run_id} has no config.yaml in MLflow ({str(error).splitlines()[0]}); run the "
            "training again to record it"
        ) from error
    return content


def read_stored_evaluation(reference: Reference, store: StoreConfig) -> "StoredEvaluation":
    """An evaluation artifact, verified.

    Args:
        reference: the artifact.
        store: S3 options.
    """
    from components.judge_candidate.pairs import read_evaluation

    return read_evaluation(fetch(reference, default_cache(), config=store))

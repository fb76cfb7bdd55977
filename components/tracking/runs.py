"""Everything a step does to an MLflow run: open or re-attach, log, tag, attach files.

Called by train_grpo (opens the run, streams metrics) and register_model (adds the evaluation). Uses MlflowClient with
an explicit URI and run id, never MLflow's global active run, so a resumed training and a later step write to the same
run.
"""

import logging
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from components.errors import BadInputError, PipelineError
from components.tracking.config import TrackingConfig

if TYPE_CHECKING:
    from mlflow import MlflowClient

KEY_TAG = "grpo.training"
"""Tag that holds a run's training hash: how a restarted training finds its run."""

PARAM_LIMIT = 6000
"""Longest parameter value MLflow stores, in characters."""

BATCH_LIMIT = 100
"""Most parameters, or tags, MLflow takes in one call."""

METRICS_LIMIT = 1000
"""Most metrics MLflow takes in one call."""


@dataclass(frozen=True)
class TrackedRun:
    """A run in MLflow.

    Attributes:
        run_id: MLflow's id, 32 hex digits.
        experiment_id: id of its experiment.
        resumed: whether it existed before.
    """

    run_id: str
    experiment_id: str
    resumed: bool


def connect(tracking: TrackingConfig) -> "MlflowClient":
    """A client of the tracking server or file.

    Args:
        tracking: the config section.

    Raises:
        PipelineError: when it cannot be reached.
    """
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")
    for noisy in ("alembic", "mlflow.store.db.utils"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    if tracking.uri.startswith("sqlite:///"):
        Path(tracking.uri.removeprefix("sqlite:///")).parent.mkdir(parents=True, exist_ok=True)
    try:
        client = MlflowClient(tracking_uri=tracking.uri, registry_uri=tracking.uri)
        client.get_experiment_by_name(tracking.experiment)
    except MlflowException as error:
        raise PipelineError(
            f"tracking.uri: MLflow at {tracking.uri} does not answer ({_first_line(error)}); start it, or mend the URI"
        ) from error
    return client


def experiment_id(client: "MlflowClient", tracking: TrackingConfig) -> str:
    """The experiment's id; the experiment is made when it is not there.

    Args:
        client: from `connect`.
        tracking: the config section.

    Raises:
        BadInputError: when the experiment was deleted in MLflow.
    """
    from mlflow.exceptions import MlflowException

    found = client.get_experiment_by_name(tracking.experiment)
    if found is None:
        location = None
        if tracking.uri.startswith("sqlite:///"):
            # MLflow's default for a database is ./mlruns of whatever folder the process runs in.
            location = (Path(tracking.uri.removeprefix("sqlite:///")).parent / "mlflow-artifacts").absolute().as_uri()
        try:
            return str(client.create_experiment(tracking.experiment, artifact_location=location))
        except MlflowException:
            # Another step made it between the two calls.
            found = client.get_experiment_by_name(tracking.experiment)
            if found is None:
                raise
    if found.lifecycle_stage == "deleted":
        raise BadInputError(
            f"tracking.experiment: {tracking.experiment!r} was deleted in MLflow; restore it, or choose another name"
        )
    return str(found.experiment_id)


def open_run(
    client: "MlflowClient", tracking: TrackingConfig, *, name: str, key: str, tags: Mapping[str, str] | None = None
) -> TrackedRun:
    """Re-attach to the run of this training, or start one.

    A run that the platform injected (MLFLOW_RUN_ID) is used for a training that has none yet, unless another training
    has taken it (the points of a sweep may all be given one); a training that has one keeps it, and the run it was
    given is tagged with where the training is.

    Args:
        client: from `connect`.
        tracking: the config section.
        name: name for a new run.
        key: the training hash.
        tags: further tags for a new run.

    Returns:
        The run, in state RUNNING.
    """
    experiment = experiment_id(client, tracking)
    injected = os.environ.get("MLFLOW_RUN_ID")
    run_id = find_run(client, experiment, key)
    if run_id:
        if injected and injected != run_id:
            client.set_tag(injected, "grpo.continues_in", run_id)
        client.update_run(run_id, status="RUNNING")
        return TrackedRun(run_id, experiment, resumed=True)
    all_tags = {KEY_TAG: key, **(tags or {})}
    if injected and client.get_run(injected).data.tags.get(KEY_TAG) is None:
        for tag, value in all_tags.items():
            client.set_tag(injected, tag, value)
        return TrackedRun(injected, str(client.get_run(injected).info.experiment_id), resumed=False)
    run = client.create_run(experiment, tags=all_tags, run_name=name)
    return TrackedRun(run.info.run_id, experiment, resumed=False)


def find_run(client: "MlflowClient", experiment: str, key: str) -> str:
    """The run of a training.

    Args:
        client: from `connect`.
        experiment: id of its experiment.
        key: the training hash.

    Returns:
        The run's id; empty when there is none.
    """
    known = client.search_runs([experiment], f"tags.`{KEY_TAG}` = '{key}'", max_results=1, order_by=["start_time ASC"])
    return str(known[0].info.run_id) if known else ""


def run_exists(client: "MlflowClient", run_id: str) -> bool:
    """Whether MLflow still has this run, not deleted.

    Args:
        client: from `connect`.
        run_id: the run.
    """
    from mlflow.exceptions import MlflowException

    try:
        return bool(client.get_run(run_id).info.lifecycle_stage == "active")
    except MlflowException:
        return False


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested settings as `section.key: text`, as MLflow parameters are compared.

    Args:
        values: nested mapping of JSON-able values.
        prefix: path so far.

    Returns:
        One entry a leaf, values cut to MLflow's limit.
    """
    flat: dict[str, str] = {}
    for key, value in values.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{path}.")
        else:
            flat[path] = str(value)[:PARAM_LIMIT]
    return flat


def log_params(client: "MlflowClient", run_id: str, params: Mapping[str, str]) -> None:
    """Log parameters that the run does not have yet (MLflow refuses a second value, so a resumed run skips them).

    Args:
        client: from `connect`.
        run_id: the run.
        params: text by name.
    """
    from mlflow.entities import Param

    present = client.get_run(run_id).data.params
    missing = [Param(name, value) for name, value in params.items() if name not in present]
    for start in range(0, len(missing), BATCH_LIMIT):
        client.log_batch(run_id, params=missing[start : start + BATCH_LIMIT])


def log_metrics(client: "MlflowClient", run_id: str, metrics: Mapping[str, float | None], step: int = 0) -> None:
    """Log one step's metrics; values that are None or not finite are left out.

    Args:
        client: from `connect`.
        run_id: the run.
        metrics: value by name.
        step: optimizer step they belong to.
    """
    log_history(client, run_id, [{"step": step, **metrics}])


def log_history(client: "MlflowClient", run_id: str, history: Sequence[Mapping[str, Any]]) -> None:
    """Log the metrics of many steps in few calls.

    Args:
        client: from `connect`.
        run_id: the run.
        history: one mapping a step: `step` and metrics by name.
    """
    import math

    from mlflow.entities import Metric

    now = int(time.time() * 1000)
    metrics = [
        Metric(name, float(value), int(row.get("timestamp", now)), int(row["step"]))
        for row in history
        for name, value in row.items()
        if name not in ("step", "timestamp")
        and isinstance(value, int | float)
        and not isinstance(value, bool)
        and math.isfinite(value)
    ]
    for start in range(0, len(metrics), METRICS_LIMIT):
        client.log_batch(run_id, metrics=metrics[start : start + METRICS_LIMIT])


def set_tags(client: "MlflowClient", run_id: str, tags: Mapping[str, str]) -> None:
    """Set tags of a run in few calls.

    Args:
        client: from `connect`.
        run_id: the run.
        tags: text by name.
    """
    from mlflow.entities import RunTag

    entries = [RunTag(name, value) for name, value in tags.items()]
    for start in range(0, len(entries), BATCH_LIMIT):
        client.log_batch(run_id, tags=entries[start : start + BATCH_LIMIT])


def end_run(client: "MlflowClient", run_id: str, status: str) -> None:
    """Mark how the run ended.

    Args:
        client: from `connect`.
        run_id: the run.
        status: FINISHED, FAILED or KILLED.
    """
    client.set_terminated(run_id, status=status)


def _first_line(error: Exception) -> str:
    """The first line of an error's text, for one sentence."""
    return (str(error).splitlines() or [type(error).__name__])[0][:300]

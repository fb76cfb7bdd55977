"""The `tracking` section: where metrics, runs and model versions are kept."""

from typing import Annotated, Literal

from pydantic import Field

from components.sections import Section


class TrackingConfig(Section):
    """MLflow, and optionally a second tracker. Credentials come from the environment (MLFLOW_TRACKING_*)."""

    uri: str = "sqlite:///.grpo/mlflow.db"
    """MLflow tracking and registry URI: http(s)://host, or sqlite:///file (relative to where the command is run)."""

    experiment: Annotated[str, Field(min_length=1)] = "grpo"
    """Name of the MLflow experiment."""

    also: list[Literal["wandb"]] = []
    """Trackers that get the training metrics besides MLflow."""

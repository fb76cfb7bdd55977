"""Which MLflow run a training reports to: its own when it has one, the platform's when that is free, else a new one."""

from pathlib import Path

import pytest
from mlflow import MlflowClient

from components.tracking.config import TrackingConfig
from components.tracking.runs import connect, experiment_id, find_run, open_run


@pytest.fixture
def tracking(tmp_path: Path) -> TrackingConfig:
    return TrackingConfig(uri=f"sqlite:///{tmp_path / 'mlflow.db'}")


@pytest.fixture
def client(tracking: TrackingConfig) -> MlflowClient:
    return connect(tracking)


@pytest.fixture
def injected(client: MlflowClient, tracking: TrackingConfig, monkeypatch: pytest.MonkeyPatch) -> str:
    run = str(client.create_run(experiment_id(client, tracking)).info.run_id)
    monkeypatch.setenv("MLFLOW_RUN_ID", run)
    return run


def test_the_platforms_run_is_used(client: MlflowClient, tracking: TrackingConfig, injected: str) -> None:
    assert open_run(client, tracking, name="run", key="first").run_id == injected


def test_two_trainings_given_one_run_do_not_share_it(
    client: MlflowClient, tracking: TrackingConfig, injected: str
) -> None:
    """The platform may give all points of a sweep the same run: parameters of two trainings would clash in it."""
    first = open_run(client, tracking, name="run", key="first")
    second = open_run(client, tracking, name="run", key="second")
    assert first.run_id == injected
    assert second.run_id != injected
    again = open_run(client, tracking, name="run", key="second")
    assert (again.run_id, again.resumed) == (second.run_id, True)


def test_a_training_is_found_by_its_key_alone(client: MlflowClient, tracking: TrackingConfig) -> None:
    experiment = experiment_id(client, tracking)
    assert find_run(client, experiment, "first") == ""
    run = open_run(client, tracking, name="run", key="first")
    assert find_run(client, experiment, "first") == run.run_id
    assert find_run(client, experiment, "second") == ""

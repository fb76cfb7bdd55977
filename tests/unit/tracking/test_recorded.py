"""What is read of MLflow's SQLite file without MLflow, held against a file that MLflow wrote."""

import sqlite3
from pathlib import Path

import pytest

from components.tracking.config import TrackingConfig
from components.tracking.recorded import recorded_version
from components.tracking.registry import register_version
from components.tracking.runs import connect, end_run, open_run, set_tags

DIGEST = "d" * 64
MARK = ("grpo.recorded", "hash")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A database with one finished, marked run and its version; the run's id."""
    path = tmp_path_factory.mktemp("tracking") / "mlflow.db"
    tracking = TrackingConfig(uri=f"sqlite:///{path}")
    client = connect(tracking)
    run = open_run(client, tracking, name="run", key="key")
    set_tags(client, run.run_id, dict([MARK]))
    register_version(
        client, "model", source="file:///weights", digest=DIGEST, run_id=run.run_id, tags={}, description=""
    )
    end_run(client, run.run_id, "FINISHED")
    return path, run.run_id


def look(path: Path, real_run: str, **changes: object) -> str | None:
    asked = {"run_id": real_run, "mark": MARK, "name": "model", "digest": DIGEST} | changes
    return recorded_version(f"sqlite:///{path}", **asked)  # type: ignore[arg-type]


def test_a_finished_run_with_its_mark_and_version_is_found(made: tuple[Path, str]) -> None:
    assert look(*made) == "1"


@pytest.mark.parametrize(
    "change",
    [{"run_id": "other"}, {"mark": ("grpo.recorded", "other")}, {"name": "other"}, {"digest": "e" * 64}],
    ids=lambda change: next(iter(change)),
)
def test_anything_else_is_left_to_mlflow(made: tuple[Path, str], change: dict[str, object]) -> None:
    assert look(*made, **change) is None


@pytest.mark.parametrize(
    "statement",
    [
        "update runs set status = 'RUNNING'",
        "update runs set lifecycle_stage = 'deleted'",
        "update model_versions set current_stage = 'Deleted_Internal'",
        "delete from tags",
        "alter table tags rename to labels",
    ],
)
def test_what_is_unfinished_deleted_or_of_another_schema_is_left_to_mlflow(
    made: tuple[Path, str], tmp_path: Path, statement: str
) -> None:
    copy = tmp_path / "mlflow.db"
    with sqlite3.connect(made[0]) as source, sqlite3.connect(copy) as target:
        source.backup(target)
    assert look(copy, made[1]) == "1"
    with sqlite3.connect(copy) as database:
        database.execute(statement)
    assert look(copy, made[1]) is None


def test_a_server_or_no_file_is_left_to_mlflow(tmp_path: Path) -> None:
    mark = {"mark": MARK, "name": "model", "digest": DIGEST, "run_id": "r"}
    assert recorded_version("https://mlflow.example.com", **mark) is None
    assert recorded_version(f"sqlite:///{tmp_path}/none.db", **mark) is None
    assert not (tmp_path / "none.db").exists()

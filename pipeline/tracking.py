"""Opens an MLflow that is there, for the commands that read it or change what it has.

Called by `grpo runs`, `compare`, `promote`, `store gc` and their like. A run makes its database where there is none;
these commands do not: a mistyped place is a sentence, and another program's SQLite file is left alone.
"""

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from components.errors import BadInputError
from components.tracking.config import TrackingConfig
from pipeline.submission import check_tracking

if TYPE_CHECKING:
    from mlflow import MlflowClient


def open_tracking(tracking: TrackingConfig) -> "MlflowClient":
    """A client; nothing is made where there is no MLflow.

    Args:
        tracking: the config section.

    Raises:
        BadInputError: it does not answer, there is no such file, or the file is not MLflow's.
    """
    check_tracking(tracking.uri)
    if tracking.uri.startswith("sqlite:///"):
        path = Path(tracking.uri.removeprefix("sqlite:///"))
        if not path.exists():
            raise BadInputError(
                f"tracking.uri: there is no MLflow database {path}; start a run with `grpo run`, or say where MLflow "
                "is with --config RUN.yaml or --tracking-uri"
            )
        if not _is_mlflow(path):
            raise BadInputError(f"tracking.uri: {path} is a SQLite database, and not one of MLflow's; name another")
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    from components.tracking.runs import connect

    return connect(tracking)


def _is_mlflow(path: Path) -> bool:
    """Whether a SQLite file holds MLflow's tables (MLflow would make them in any)."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        found = database.execute("select count(*) from sqlite_master where name = 'experiments'").fetchone()
    return bool(found[0])

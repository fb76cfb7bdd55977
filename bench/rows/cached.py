"""Row `cached`: the same run again, nothing changed; it must find everything and do nothing."""

import shutil
import sys
from pathlib import Path

from bench.measuring import run_program
from bench.results import ROOT, Result
from bench.session import STATE, Row, Session, Side, base_environment

CONFIG = ROOT / "configs" / "quickstart.yaml"

TINY = (
    "training.max_steps=1", "evaluation.limit=8", "gates.min_rows=1", "gates.min_format_compliance=null",
    "gates.min_accuracy_gain=null", "gates.max_truncation=null", "gates.accuracy_margin=0.99", "smoke_test.prompts=0",
    "training.validation_rows=0",
)  # fmt: skip
"""A run that costs little and passes."""


def grpo_run(folder: Path, *settings: str) -> list[str]:
    """`grpo run` of the quickstart with all its state in one folder.

    Args:
        folder: where to.
        settings: `section.key=value` texts.
    """

    state = (f"store.uri={folder / 'store'}", f"tracking.uri=sqlite:///{folder / 'mlflow.db'}")
    overrides = [part for setting in (*state, *settings) for part in ("--set", setting)]
    return [sys.executable, "-m", "pipeline.cli", "run", str(CONFIG), "--home", str(folder / "home"), *overrides]


def run(session: Session) -> None:
    """Measure."""
    folder = STATE / "cached"
    command = grpo_run(folder, *(TINY if session.tiny else ()))
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    first = run_program(command, environment=base_environment(), folder=folder)
    session.result.data["facts"]["first run"] = first
    session.compare("second run", {"ours": Side(command, folder=folder)})


def asks(result: Result) -> None:
    """What was asked."""
    result.ask("seconds of the second run", result.found("second run", "ours", "wall_s"), "<=", 10)


ROW = Row(
    name="cached",
    work="`grpo run configs/quickstart.yaml` a second time",
    peer="-",
    ask="<= 10 s",
    run=run,
    asks=asks,
)

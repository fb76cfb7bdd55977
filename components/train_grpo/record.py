"""`training.json`: what a finished training leaves beside its adapter for the report, the register step and a re-run.

Light (no torch), so that a step that only finds the training already done answers at once.
"""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

RECORD_FILE = "training.json"


@dataclass(frozen=True)
class TrainingRecord:
    """All that is known about a finished training.

    Attributes:
        key: hash of all that affects it.
        mlflow_run_id: the run its metrics went to.
        run_name: run.name.
        stages: one mapping a stage: name, kind, steps.
        history: logged rows of all stages: step, metrics, `stage`.
        validation: metrics of the check on validation rows of the step that goes on.
        settings: what it was trained with: TRL arguments, lora, rewards, seed, model and dataset references.
        versions: package versions, device, git commit.
        seconds: training time over all tries that were not lost.
        tokens: tokens TRL counted.
        peak_memory_mib: most memory the process held (RSS on a CPU, allocated on a GPU).
        chosen_step: the step that goes on to the merge, counted over all stages.
        checks: every check on validation rows: step, stage, metrics by name.
        batch: the batch of the last stage: per_device, accumulation, processes, group_size.
    """

    key: str
    mlflow_run_id: str
    run_name: str
    stages: list[dict[str, Any]]
    history: list[dict[str, Any]]
    validation: dict[str, float]
    settings: dict[str, Any]
    versions: dict[str, str]
    seconds: float
    tokens: float
    peak_memory_mib: float
    chosen_step: int = 0
    checks: list[dict[str, Any]] = field(default_factory=list)
    batch: dict[str, int] = field(default_factory=dict)


def write_record(record: TrainingRecord, directory: Path) -> None:
    """Write it into the adapter's folder.

    Args:
        record: the record.
        directory: the adapter's folder.
    """
    (directory / RECORD_FILE).write_text(json.dumps(asdict(record), indent=1), encoding="utf-8")


def read_record(directory: Path) -> TrainingRecord:
    """Read it from an adapter's folder.

    Args:
        directory: the adapter's folder.
    """
    return TrainingRecord(**json.loads((directory / RECORD_FILE).read_text(encoding="utf-8")))

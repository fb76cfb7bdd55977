"""What every `component.py` wraps its one call in: the step's events and its exit code.

`step(name)` reports started, finished or failed; `report_progress` reports how far a long loop is. Events are JSON
lines appended to the file named by the environment variable GRPO_EVENTS (`pipeline.runners` sets it and draws them);
without it they are log lines. A `PipelineError` ends the process with its exit code and one sentence; any other
exception keeps its traceback.
"""

import json
import logging
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from components.errors import ExitCode, PipelineError

EVENTS_VARIABLE = "GRPO_EVENTS"
log = logging.getLogger("grpo")


def emit(event: Mapping[str, Any]) -> None:
    """Append one event to the events file, or log it where there is none.

    Args:
        event: JSON-able mapping with at least `step` and `event`.
    """
    path = os.environ.get(EVENTS_VARIABLE)
    line = json.dumps({"time": time.time(), **event}, default=str)
    if path:
        # One write of one short line in append mode is atomic on a local file system.
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(line + "\n")
    else:
        log.info("%s", line)


def report_progress(
    step_name: str, done: int, total: int, *, unit: str = "step", figures: Mapping[str, float] | None = None
) -> None:
    """Say how far a long loop of a step is.

    Args:
        step_name: the step's name, such as `train_grpo`.
        done: units finished so far.
        total: units in all.
        unit: what is counted (step, row, file, prompt).
        figures: numbers worth showing beside the bar, such as {"reward": 0.8}.
    """
    figures = dict(figures or {})
    emit({"step": step_name, "event": "progress", "done": done, "total": total, "unit": unit, "figures": figures})


@contextmanager
def step(name: str) -> Iterator[None]:
    """Run the body as the step `name`, reporting how it starts and ends.

    Args:
        name: the step's folder name under `components/`.

    Raises:
        SystemExit: with the error's exit code, when the body raises a `PipelineError`.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    emit({"step": name, "event": "started"})
    try:
        yield
    except PipelineError as error:
        emit({"step": name, "event": "failed", "exit_code": int(error.exit_code), "message": str(error)})
        print(f"{name}: {error}", file=sys.stderr)
        raise SystemExit(int(error.exit_code)) from None
    except BaseException as error:
        message = f"{type(error).__name__}: {error}"
        emit({"step": name, "event": "failed", "exit_code": int(ExitCode.ERROR), "message": message, "fault": True})
        raise
    emit({"step": name, "event": "finished"})


def work_directory(name: str) -> Path:
    """A local folder a step may fill and lose: below GRPO_WORK, else below the system's temporary folder.

    Args:
        name: the step's name.

    Returns:
        The folder, made when missing.
    """
    root = os.environ.get("GRPO_WORK")
    if not root:
        import tempfile  # brings much with it, and most steps are told where to work

        root = str(Path(tempfile.gettempdir()) / "grpo-work")
    directory = Path(root) / name
    directory.mkdir(parents=True, exist_ok=True)
    return directory

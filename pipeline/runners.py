"""Starts a run of the graph and follows it: on this machine with one process or one container a step.

`run_local` is what `grpo run` calls. The graph runs in a process of its own (local_process.py) so that this one stays
light and can draw; steps report through an events file (components/steps.py). KFP's own log goes to a file.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from components.errors import BadInputError, ExitCode
from components.steps import EVENTS_VARIABLE
from pipeline.config import RunConfig
from pipeline.fingerprint import files_fingerprint
from pipeline.submission import prepare_submission

if TYPE_CHECKING:
    from pipeline.planning.sweep import Sweep

STEP_ORDER = (
    "import_model",
    "prepare_dataset",
    "smoke_test_rewards",
    "train_grpo",
    "merge_lora",
    "evaluate_holdout",
    "judge_candidate",
    "register_model",
)
"""Steps in the order of the graph; evaluate_holdout runs twice."""

GRACE_SECONDS = 120.0
"""How long steps may take to save and stop before they are killed."""

POLL_SECONDS = 0.2
"""Time between two looks at the events file."""

Event = dict[str, Any]


@dataclass
class Outcome:
    """How a run ended.

    Attributes:
        exit_code: what the command exits with.
        message: why it did not pass; empty when it did.
        failed_step: the step that failed, or empty.
        folder: the run folder (compiled pipeline, log, reports).
        summary: what register_model reported: metrics, verdict, version; empty when it was not reached.
        interrupted: whether a person stopped it.
        ran: steps that ran (the others were reused).
    """

    exit_code: ExitCode
    message: str
    failed_step: str
    folder: Path
    summary: dict[str, Any] = field(default_factory=dict)
    interrupted: bool = False
    ran: list[str] = field(default_factory=list)

    @property
    def log(self) -> Path:
        """The file with everything the steps printed."""
        return self.folder / "run.log"


def new_run_folder(config: RunConfig, home: Path) -> Path:
    """A fresh folder for a run's files.

    Args:
        config: the run config.
        home: the state folder (.grpo).

    Raises:
        BadInputError: when it cannot be made.
    """
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S-%f")[:-3]
    folder = home / "runs" / f"{config.run.name}-{stamp}"
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise BadInputError(
            f"the run folder {folder} cannot be made ({error.strerror}); run from a writable folder"
        ) from error
    return folder


def run_local(
    config: RunConfig,
    *,
    home: Path,
    caching: bool = True,
    on_event: Callable[[Event], None] | None = None,
    runner: Literal["local", "docker"] = "local",
    sweep: "Sweep | None" = None,
) -> Outcome:
    """Run the graph on this machine.

    Args:
        config: the run config.
        home: the state folder (.grpo): run folders, KFP's cache, scratch space.
        caching: whether unchanged steps may be reused.
        on_event: called with each event a step reports.
        runner: one process a step, or one container a step.
        sweep: a grid to train instead of the config alone.

    Returns:
        How it ended. Ctrl-C and SIGTERM stop every process and are an outcome, not an exception.
    """
    fresh = not home.exists()
    folder = new_run_folder(config, home)
    events = folder / "events.jsonl"
    events.touch()
    prepare_submission(
        config,
        folder,
        cache=home / "cache",
        caching=caching,
        inputs=files_fingerprint,
        runner=runner,
        sweep=sweep,
    )
    outcome = Outcome(ExitCode.ERROR, "", "", folder)
    environment = {
        **os.environ,
        EVENTS_VARIABLE: str(events),
        "GRPO_WORK": str(home / "work"),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "TOKENIZERS_PARALLELISM": "false",
        "NO_COLOR": "1",
    }
    with outcome.log.open("wb") as log:
        process = subprocess.Popen(  # noqa: S603 (our own module)
            [sys.executable, "-m", "pipeline.local_process", str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
        with _stop_group_on_signal(process) as stop:
            for event in _follow(events, process):
                _note(outcome, event)
                if on_event is not None:
                    on_event(event)
        outcome.interrupted = stop.received is not None
    if runner == "docker":
        from pipeline.docker_runner import remove_containers

        remove_containers(folder)
    _conclude(outcome, process.returncode)
    if outcome.exit_code is ExitCode.BAD_INPUT:
        # Refused input leaves nothing behind; a state folder that was there before keeps what it had.
        shutil.rmtree(home if fresh else folder, ignore_errors=True)
    return outcome


class _stop_group_on_signal:  # noqa: N801 (reads as a verb in `with`)
    """While a run goes on, SIGINT and SIGTERM stop its process group: first politely, after a while by force."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process
        self._previous: dict[int, Any] = {}
        self.received: signal.Signals | None = None

    def __enter__(self) -> "_stop_group_on_signal":
        for number in (signal.SIGINT, signal.SIGTERM):
            self._previous[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        _kill_group(self._process.pid, signal.SIGKILL)  # whatever a step left behind

    def _receive(self, number: int, frame: Any) -> None:
        again = self.received is not None
        self.received = signal.Signals(number)
        _kill_group(self._process.pid, signal.SIGKILL if again else signal.SIGTERM)
        if not again:
            signal.signal(signal.SIGALRM, lambda *_: _kill_group(self._process.pid, signal.SIGKILL))
            signal.alarm(int(GRACE_SECONDS))


def _kill_group(group: int, number: signal.Signals) -> None:
    """Signal a process group that may be gone."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return


def _follow(events: Path, process: "subprocess.Popen[bytes]") -> Iterator[Event]:
    """Events as they are written, until the process has ended and all are read."""
    with events.open(encoding="utf-8") as file:
        partial = ""
        while True:
            ended = process.poll() is not None
            chunk = file.read()
            *lines, partial = (partial + chunk).split("\n")
            for line in lines:
                yield json.loads(line)
            if ended:
                return
            if not chunk:
                time.sleep(POLL_SECONDS)


def _note(outcome: Outcome, event: Event) -> None:
    """Keep what an event says about how the run ends."""
    kind = event["event"]
    if kind == "started":
        outcome.ran.append(event["step"])
    elif kind == "summary":
        outcome.summary = event["summary"]
    elif kind == "failed" and not outcome.message:
        outcome.exit_code = ExitCode(event["exit_code"])
        outcome.message = event["message"]
        outcome.failed_step = event["step"]


def _conclude(outcome: Outcome, returncode: int) -> None:
    """Settle the exit code when no step said why the run ended."""
    if outcome.interrupted and outcome.exit_code is not ExitCode.RESUMABLE:
        outcome.exit_code = ExitCode.RESUMABLE
        outcome.message = "stopped by a signal; finished steps are kept, the same command goes on from there"
    elif returncode == 0 and not outcome.message:
        outcome.exit_code = ExitCode.PASSED
    elif not outcome.message:
        last = outcome.ran[-1] if outcome.ran else "the pipeline"
        outcome.failed_step = last
        outcome.message = f"{last} ended without a word (killed, or out of memory); its output is in {outcome.log}"

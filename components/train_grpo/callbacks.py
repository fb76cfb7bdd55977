"""What happens beside the optimizer steps of TRL's trainer: progress, MLflow, samples, guards, checkpoints, signals.

Each is a small TrainerCallback; train.py puts them on the trainer. None of them changes what is learned.
"""

import json
import logging
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from components.errors import GateFailedError
from components.rewards.guard import RewardGuard
from components.steps import report_progress
from components.tracking.runs import log_history
from components.train_grpo.checkpoints import CheckpointUploader
from components.train_grpo.config import GuardsConfig
from components.train_grpo.guards import first_stop, high_kl

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from trl import GRPOTrainer

log = logging.getLogger(__name__)

FLUSH_SECONDS = 2.0
"""MLflow gets metrics in batches at most this often: one call a logged step would slow short steps down."""

SAMPLES_A_TABLE = 16
"""Completions kept of each sampled step."""

SAMPLES_FILE = "samples.json"
"""File in a checkpoint that holds the samples so far."""


REWARD_STATE_FILE = "rewards.json"
"""File in a checkpoint that holds the state of rewards that keep one."""


class ProgressCallback(TrainerCallback):
    """Reports steps done, reward and clipped share for the progress bar.

    Args:
        offset: steps of earlier stages.
        total: steps of all stages.
    """

    def __init__(self, offset: int, total: int) -> None:
        self._offset, self._total = offset, total
        self._figures: dict[str, float] = {}

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Remember the figures shown beside the bar."""
        shown = {"reward": "reward", "loss": "loss", "frac_reward_zero_std": "constant groups"}
        self._figures = {label: logs[name] for name, label in shown.items() if logs and logs.get(name) is not None}
        if "reward" in self._figures:
            self._figures.pop("loss", None)
        report_progress("train_grpo", self._offset + state.global_step, self._total, figures=self._figures)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Move the bar."""
        report_progress("train_grpo", self._offset + state.global_step, self._total, figures=self._figures)


class MlflowCallback(TrainerCallback):
    """Streams TRL's metrics into the MLflow run; an unreachable server delays them and never stops the training.

    Args:
        client: MLflow client.
        run_id: the run.
        offset: steps of earlier stages, added to this stage's.
        prefix: put before every metric name (stages that are not the main one), or "".
    """

    def __init__(self, client: "MlflowClient", run_id: str, *, offset: int, prefix: str) -> None:
        self._client, self._run_id = client, run_id
        self._offset, self._prefix = offset, prefix
        self._waiting: list[dict[str, Any]] = []
        self._flushed = 0.0

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Queue the row; send what is queued when the last sending is long enough ago."""
        row = {f"{self._prefix}{name}": value for name, value in (logs or {}).items()}
        self._waiting.append({"step": self._offset + state.global_step, "timestamp": int(time.time() * 1000), **row})
        if time.monotonic() - self._flushed > FLUSH_SECONDS:
            self.flush()

    def send_missing(self, history: Sequence[Mapping[str, Any]]) -> None:
        """Send the rows up to a checkpoint that were still queued when the process was killed.

        Args:
            history: logged rows of this stage up to the checkpoint.
        """
        present = {metric.step for metric in self._client.get_metric_history(self._run_id, f"{self._prefix}loss")}
        for row in history:
            step = self._offset + int(row["step"])
            if step not in present:
                self._waiting.append({**{f"{self._prefix}{k}": v for k, v in row.items()}, "step": step})
        self.flush()

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Send the rest."""
        self.flush()

    def flush(self) -> None:
        """Send what is queued; keep it when the server does not take it."""
        from mlflow.exceptions import MlflowException

        self._flushed = time.monotonic()
        try:
            log_history(self._client, self._run_id, self._waiting)
        except MlflowException as error:
            log.warning("MLflow did not take %d rows, they are sent later: %s", len(self._waiting), error)
            return
        self._waiting.clear()


class HistoryCallback(TrainerCallback):
    """Keeps every logged row, and ends the training when a guard says so.

    Args:
        guards: thresholds.
        history: rows logged before a resume; grows.
    """

    def __init__(self, guards: GuardsConfig, history: list[dict[str, float]]) -> None:
        self._guards = guards
        self._history = history
        self._warned = False

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Append the row and look at it."""
        numbers = {name: float(value) for name, value in (logs or {}).items() if isinstance(value, int | float)}
        if "loss" not in numbers and "reward" not in numbers:
            return  # the summary row at the end of training
        self._history.append({"step": float(state.global_step), **numbers})
        sentence = first_stop(self._history, self._guards)
        if sentence:
            raise GateFailedError(f"training stopped: {sentence}")
        warning = high_kl(self._history, self._guards)
        if warning and not self._warned:
            self._warned = True
            log.warning("%s", warning)


class SampleCallback(TrainerCallback):
    """Every N steps keeps some of the completions just generated, with rewards and advantages.

    Args:
        every: steps between two tables.
        samples: rows so far; grows.
        offset: steps of earlier stages.
    """

    def __init__(self, every: int, samples: list[dict[str, Any]], *, offset: int) -> None:
        self._every, self._samples, self._offset = every, samples, offset
        self.trainer: GRPOTrainer | None = None

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Take the sample when its step has come (and at the first and the last)."""
        step = state.global_step
        if self.trainer is None or not (step % self._every == 0 or step in (1, state.max_steps)):
            return
        # TRL keeps the texts of the last generation batch here for its own (console and parquet only) table.
        logs = self.trainer._logs
        rewards: Mapping[str, Sequence[float]] = {name: list(values) for name, values in logs["rewards"].items()}
        rows = zip(logs["prompt"], logs["completion"], logs["advantages"], strict=True)
        for index, (prompt, completion, advantage) in enumerate(rows):
            if index >= SAMPLES_A_TABLE:
                break
            self._samples.append(
                {
                    "step": self._offset + step,
                    "prompt": prompt[-1]["content"] if isinstance(prompt, list) else str(prompt),
                    "completion": completion[-1]["content"] if isinstance(completion, list) else str(completion),
                    **{f"rewards/{name}": values[index] for name, values in rewards.items()},
                    "advantage": float(advantage),
                }
            )


class CheckpointCallback(TrainerCallback):
    """Hands each finished checkpoint to the uploader.

    Args:
        uploader: copies it to the store.
        samples: completions kept so far, saved with it.
        guard: holds the rewards' state, saved with it.
    """

    def __init__(self, uploader: CheckpointUploader, samples: list[dict[str, Any]], guard: RewardGuard) -> None:
        self._uploader, self._samples, self._guard = uploader, samples, guard

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Add our own state to the folder and queue it (rank 0 only)."""
        if not state.is_world_process_zero:
            return
        directory = Path(args.output_dir or ".") / f"checkpoint-{state.global_step}"
        (directory / SAMPLES_FILE).write_text(json.dumps(self._samples), encoding="utf-8")
        (directory / REWARD_STATE_FILE).write_text(json.dumps(self._guard.state_dict()), encoding="utf-8")
        self._uploader.submit(directory)


class StopOnSignalCallback(TrainerCallback):
    """On SIGTERM or SIGINT: save at the end of the running step and stop. Installed by `watch`."""

    def __init__(self) -> None:
        self.received: signal.Signals | None = None

    def watch(self) -> None:
        """Take over SIGTERM and SIGINT of this process."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._receive)

    def _receive(self, number: int, frame: Any) -> None:
        self.received = signal.Signals(number)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Ask the trainer to save and stop."""
        if self.received is not None:
            control.should_save = True
            control.should_training_stop = True

"""What happens beside the optimizer steps of TRL's trainer: progress, MLflow, samples, checks, guards, checkpoints.

Each is a small TrainerCallback; stages.py puts them on the trainer, in the order of this file. Only WeightsCallback
changes what is learned. With several processes all run on every rank unless it says so; MLflow, events and the store
are rank 0's.
"""

import json
import logging
import signal
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from components.contract import Contract
from components.errors import GateFailedError
from components.rewards.guard import RewardGuard
from components.steps import emit, report_progress
from components.tracking.runs import log_history
from components.train_grpo.checkpoints import CheckpointUploader
from components.train_grpo.config import GuardsConfig, TrainingConfig
from components.train_grpo.guards import first_stop, warnings
from components.train_grpo.ranks import any_rank, from_first, rank
from components.train_grpo.selection import ACCURACY, COMPLIANCE, Check, best_check, is_best, stopped_improving
from components.train_grpo.validation import Validator
from components.train_grpo.weights import MovingWeights

if TYPE_CHECKING:
    from mlflow import MlflowClient

    from components.train_grpo.trainer import MeasuredGRPOTrainer

log = logging.getLogger(__name__)

FLUSH_SECONDS = 2.0
"""MLflow gets metrics in batches at most this often: one call a logged step would slow short steps down."""

SAMPLES_A_TABLE = 16
"""Completions kept of each sampled step."""

SAMPLES_SHOWN = 3
"""Of those, how many go to the console."""

STATE_FILE = "pipeline_state.json"
"""File in a checkpoint that holds what trainer and optimizer do not: samples, checks, state of rewards and weights."""


def say(message: str) -> None:
    """Tell the person something worth a line: in the log, and in the console where `grpo run` draws.

    Args:
        message: one sentence.
    """
    if rank() == 0:
        log.warning("%s", message)
        emit({"step": "train_grpo", "event": "note", "message": message})


def require_finite(policy: Any) -> None:
    """Refuse to go on with weights that hold a NaN or an infinity.

    Args:
        policy: the model being trained.

    Raises:
        GateFailedError: naming the weight.
    """
    trained = [(name, p.detach()) for name, p in policy.named_parameters() if p.requires_grad]
    # One number a weight and one answer for all: a check of each by itself would wait for the GPU each time.
    sums = torch.stack([weight.sum(dtype=torch.float32) for _, weight in trained])
    if bool(torch.isfinite(sums).all()):
        return
    for name, weight in trained:
        if not bool(torch.isfinite(weight).all()):
            raise GateFailedError(
                f"training stopped: weight {name} is not finite; the last good checkpoint is kept. Try a lower "
                "training.learning_rate, training.max_grad_norm: 0.1, or model.dtype: float32"
            )


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
        self._report(state)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Move the bar."""
        self._report(state)

    def _report(self, state: TrainerState) -> None:
        if rank() == 0:
            report_progress("train_grpo", self._offset + state.global_step, self._total, figures=self._figures)


class MlflowCallback(TrainerCallback):
    """Streams metrics and tables into the MLflow run (rank 0 only).

    Sending happens in a thread of its own: a slow server delays what is shown and never a step, and an unreachable one
    gets everything once it answers.

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
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="mlflow")
        self._sending: Future[None] | None = None

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Queue the row; send what is queued when the last sending is long enough ago."""
        self.queue(state.global_step, logs or {})

    def queue(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Queue one step's metrics.

        Args:
            step: optimizer steps of this stage done.
            metrics: value by name.
        """
        row = {f"{self._prefix}{name}": value for name, value in metrics.items()}
        self._waiting.append({"step": self._offset + step, "timestamp": int(time.time() * 1000), **row})
        idle = self._sending is None or self._sending.done()
        if idle and time.monotonic() - self._flushed > FLUSH_SECONDS:
            self._flushed = time.monotonic()
            self._sending = self._pool.submit(self._send)

    def queue_table(self, rows: Sequence[Mapping[str, Any]], name: str) -> None:
        """Queue a table, written as an artifact of the run.

        Args:
            rows: one mapping a row, all with the same keys.
            name: path of the artifact, ending in .json.
        """
        table = {column: [row[column] for row in rows] for column in rows[0]}
        self._pool.submit(self._send_table, table, name)

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
        self._pool.submit(self._send).result()

    def finish(self) -> None:
        """Send the rest and wait for it."""
        self._pool.submit(self._send).result()
        self._pool.shutdown()

    def _send(self) -> None:
        """Send what is queued; keep it when the server does not take it."""
        from mlflow.exceptions import MlflowException

        count = len(self._waiting)  # the training thread may append meanwhile
        try:
            log_history(self._client, self._run_id, self._waiting[:count])
        except MlflowException as error:
            log.warning("MLflow did not take %d rows, they are sent later: %s", count, error)
            return
        del self._waiting[:count]

    def _send_table(self, table: dict[str, Any], name: str) -> None:
        from mlflow.exceptions import MlflowException

        try:
            self._client.log_table(self._run_id, table, artifact_file=name)
        except MlflowException as error:
            log.warning("MLflow did not take the table %s: %s", name, error)


class WeightsCallback(TrainerCallback):
    """Sets the reward weights of each step, where they move.

    Args:
        weights: the stage's weights and their state.
        mlflow: where the weights are logged; None on other ranks.
    """

    def __init__(self, weights: MovingWeights, mlflow: MlflowCallback | None) -> None:
        self._weights, self._mlflow = weights, mlflow
        self.trainer: MeasuredGRPOTrainer | None = None

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Put the weights on the trainer before it generates and scores."""
        if self.trainer is not None:
            weights = self._weights.at(state.global_step)
            self.trainer.reward_weights = torch.tensor(list(weights.values()), dtype=torch.float32)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Look at what the step's completions earned."""
        if self.trainer is None:
            return
        # The same on all ranks: TRL gathers rewards before it keeps them.
        earned = {name: [v for v in values if v == v] for name, values in self.trainer._logs["rewards"].items()}
        used = self._weights.at(state.global_step - 1)
        self._weights.observe(
            state.global_step, {name: sum(values) / len(values) for name, values in earned.items() if values}
        )
        if self._mlflow is not None and state.global_step % max(1, int(args.logging_steps)) == 0:
            self._mlflow.queue(state.global_step, {f"rewards/{name}/weight": value for name, value in used.items()})


class ValidationCallback(TrainerCallback):
    """Every N steps, and at the last, checks the policy on validation rows; protects the best step, stops early.

    Args:
        validator: checks a policy.
        checks: checks of this stage so far; grows.
        training: how often, what is kept, how much patience.
        choosing: whether the best step of this stage goes on (the last GRPO stage).
        uploader: keeps the best step's checkpoint; None on other ranks.
        mlflow: where metrics go; None on other ranks.
    """

    def __init__(
        self,
        validator: Validator,
        checks: list[Check],
        training: TrainingConfig,
        *,
        choosing: bool,
        uploader: CheckpointUploader | None,
        mlflow: MlflowCallback | None,
    ) -> None:
        self._validator, self._checks, self._training = validator, checks, training
        self._choosing, self._uploader, self._mlflow = choosing, uploader, mlflow
        self.policy: Any = None

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Check when it is time."""
        step, every = state.global_step, self._training.validate_every
        if not self._validator or not (step >= state.max_steps or (every and step % every == 0)):
            return
        metrics = from_first(self._validator.check(self.policy) if rank() == 0 else None)
        self._checks.append(Check(step, metrics))
        if self._mlflow is not None:
            self._mlflow.queue(step, metrics)
        log.info("step %d: %s", step, ", ".join(f"{name} {value:.4g}" for name, value in metrics.items()))
        if self._choosing and is_best(self._checks):
            control.should_save = True
            if self._uploader is not None:
                self._uploader.protect(step)
        if stopped_improving(self._checks, self._training.patience) and step < state.max_steps:
            control.should_save = control.should_training_stop = True
            best = best_check(self._checks)
            seen = "" if best is None else f" (best at step {best.step}: {describe(best.metrics)})"
            say(f"training ends early at step {step}: {self._training.patience} checks brought nothing better{seen}")


def describe(metrics: Mapping[str, float]) -> str:
    """A check in words.

    Args:
        metrics: from `Validator.check`.
    """
    return f"compliance {metrics.get(COMPLIANCE, 0.0):.1%}, accuracy {metrics.get(ACCURACY, 0.0):.1%}"


class HistoryCallback(TrainerCallback):
    """Keeps every logged row, and ends the training when a guard says so.

    Args:
        guards: thresholds.
        history: rows logged before a resume; grows.
    """

    def __init__(self, guards: GuardsConfig, history: list[dict[str, float]]) -> None:
        self._guards = guards
        self._history = history
        self._warned: set[str] = set()
        self.policy: Any = None

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Look at the weights: with a NaN in them the next generation would fail with an error of PyTorch's."""
        require_finite(self.policy)

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
        for name, warning in warnings(self._history, self._guards).items():
            if name not in self._warned:
                self._warned.add(name)
                say(warning)


class SampleCallback(TrainerCallback):
    """Every N steps keeps some of the completions just generated, with rewards, advantage and reasons (rank 0 only).

    Args:
        every: steps between two tables.
        samples: rows so far; grows.
        offset: steps of earlier stages.
        contract: says why a completion is not in the format.
        mlflow: where the table goes.
    """

    def __init__(
        self,
        every: int,
        samples: list[dict[str, Any]],
        *,
        offset: int,
        contract: Contract,
        mlflow: MlflowCallback,
    ) -> None:
        self._every, self._samples, self._offset = every, samples, offset
        self._contract, self._mlflow = contract, mlflow
        self.trainer: MeasuredGRPOTrainer | None = None

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Take the sample when its step has come (and at the first and the last)."""
        step = state.global_step
        if self.trainer is None or not (step % self._every == 0 or step in (1, state.max_steps)):
            return
        # TRL keeps the texts of the last generation batch here for its own (console and parquet only) table.
        logs = self.trainer._logs
        rewards: Mapping[str, Sequence[float]] = {name: list(values) for name, values in logs["rewards"].items()}
        weights = dict(zip(self.trainer.reward_func_names, self.trainer.reward_weights.tolist(), strict=True))
        table: list[dict[str, Any]] = []
        rows = zip(logs["prompt"], logs["completion"], logs["advantages"], strict=True)
        for index, (prompt, completion, advantage) in enumerate(rows):
            if index >= SAMPLES_A_TABLE:
                break
            text = completion[-1]["content"] if isinstance(completion, list) else str(completion)
            scores = {name: values[index] for name, values in rewards.items()}
            known = [weights[name] * score for name, score in scores.items() if score == score]
            table.append(
                {
                    "step": self._offset + step,
                    "prompt": prompt[-1]["content"] if isinstance(prompt, list) else str(prompt),
                    "completion": text,
                    **{f"rewards/{name}": score for name, score in scores.items()},
                    "reward": sum(known) if known else None,
                    "advantage": float(advantage),
                    "reasons": ", ".join(self._contract.check(text).reasons),
                }
            )
        self._samples += table
        self._mlflow.queue_table(table, f"samples/step-{self._offset + step:06d}.json")
        shown = ("completion", "reward", "advantage", "reasons")
        emit(
            {
                "step": "train_grpo",
                "event": "samples",
                "at": self._offset + step,
                # Spread over the table: rows that follow each other are of one group.
                "rows": [{name: row[name] for name in shown} for row in table[:: -(-len(table) // SAMPLES_SHOWN)]],
            }
        )


class CheckpointCallback(TrainerCallback):
    """Adds the pipeline's own state to each finished checkpoint and hands it to the uploader.

    Args:
        uploader: copies it to the store; None on other ranks.
        samples: completions kept so far.
        checks: checks of this stage so far.
        guard: holds the rewards' state.
        weights: holds the weights' state; None in a supervised stage.
    """

    def __init__(
        self,
        uploader: CheckpointUploader | None,
        samples: list[dict[str, Any]],
        checks: list[Check],
        guard: RewardGuard,
        weights: MovingWeights | None,
    ) -> None:
        self._uploader, self._samples, self._checks = uploader, samples, checks
        self._guard, self._weights = guard, weights

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Add our own state to the folder and queue it."""
        if self._uploader is None:
            return
        directory = Path(args.output_dir or ".") / f"checkpoint-{state.global_step}"
        content = {
            "samples": self._samples,
            "checks": [asdict(check) for check in self._checks],
            "rewards": self._guard.state_dict(),
            "weights": self._weights.state_dict() if self._weights else None,
        }
        (directory / STATE_FILE).write_text(json.dumps(content), encoding="utf-8")
        self._uploader.submit(directory)


class StopOnSignalCallback(TrainerCallback):
    """On SIGTERM or SIGINT to any rank: save at the end of the running step and stop. Installed by `watch`."""

    def __init__(self) -> None:
        self.received: signal.Signals | None = None

    def watch(self) -> None:
        """Take over SIGTERM and SIGINT of this process."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._receive)

    def _receive(self, number: int, frame: Any) -> None:
        self.received = signal.Signals(number)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Ask the trainer to save and stop, on all ranks in the same step."""
        if any_rank(self.received is not None):
            self.received = self.received or signal.SIGTERM
            control.should_save = True
            control.should_training_stop = True

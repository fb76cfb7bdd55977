"""Runs the stages of a training on one policy, each resumable by itself. Called by train.py, or by launch.py on each of
several ranks; imports torch, trl.

Rank 0 decides and keeps the books (checkpoints to take up, MLflow, the store); the others follow it.
"""

import gc
import json
import logging
import math
import os
import random
import resource
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from datasets import Dataset
from peft import PeftModel
from transformers import AutoTokenizer, TrainerCallback
from trl import SFTTrainer

from components.contract import Contract, build_contract
from components.errors import BadInputError, GateFailedError, PipelineError, ResumableError
from components.rewards.guard import RewardGuard
from components.storage.references import Reference
from components.storage.store import ArtifactStore
from components.tracking.runs import connect, end_run, flatten, log_metrics, log_params, open_run, set_tags
from components.train_grpo.arguments import Device, find_device, grpo_arguments, sft_arguments
from components.train_grpo.batches import BatchPlan
from components.train_grpo.callbacks import (
    STATE_FILE,
    CheckpointCallback,
    HistoryCallback,
    MlflowCallback,
    ProgressCallback,
    SampleCallback,
    StopOnSignalCallback,
    ValidationCallback,
    WeightsCallback,
    describe,
    require_finite,
    say,
)
from components.train_grpo.checkpoints import Checkpoint, CheckpointUploader, fetch_checkpoint, newest_checkpoint
from components.train_grpo.config import StageConfig, TrainingConfig, check_steps, stage_training
from components.train_grpo.drift import drift, fingerprint
from components.train_grpo.memory_note import read_halvings, write_halvings
from components.train_grpo.policy import load_policy, load_weights, save_policy
from components.train_grpo.ranks import from_first, rank, wait_for_all, world_size
from components.train_grpo.record import TrainingRecord, write_record
from components.train_grpo.selection import Check, best_check, stopped_improving
from components.train_grpo.shape import measured_shape
from components.train_grpo.train import TrainingInputs, reward_weights, settings_of, versions
from components.train_grpo.trainer import MeasuredGRPOTrainer
from components.train_grpo.validation import Validator
from components.train_grpo.weights import moving_weights

log = logging.getLogger(__name__)

KEPT_CHECKPOINTS = 2
"""Complete checkpoints that stay in the store while a stage runs: the newest, and the one before in case of damage. The
best one by validation stays too."""

SYSTEM_SECONDS = 10.0
"""Time between two readings of CPU, memory and GPU for MLflow."""


class OutOfMemoryError(Exception):
    """A process of several ran out of memory and has written down a smaller micro-batch: start all again."""


@dataclass
class Progress:
    """What accumulates over the stages (and is taken up again with a checkpoint).

    Attributes:
        history: logged rows of all stages.
        samples: completions kept.
        stages: finished stages: name, kind, steps.
        checks: checks on validation rows: step, stage, metrics.
        chosen_step: the step that goes on, counted over all stages.
        seconds: training time.
    """

    history: list[dict[str, Any]] = field(default_factory=list)
    samples: list[dict[str, Any]] = field(default_factory=list)
    stages: list[dict[str, Any]] = field(default_factory=list)
    checks: list[dict[str, Any]] = field(default_factory=list)
    chosen_step: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class StagePlan:
    """One stage, ready to run.

    Attributes:
        index: its place.
        stage: the config section.
        training: the training section with its overrides.
        rows: what it learns from.
        steps: optimizer steps.
        offset: steps of earlier stages.
        batch: the batch of one step.
        last: whether its result is the training's.
    """

    index: int
    stage: StageConfig
    training: TrainingConfig
    rows: Dataset
    steps: int
    offset: int
    batch: BatchPlan
    last: bool


@dataclass(frozen=True)
class Surroundings:
    """What all stages share.

    Attributes:
        inputs: everything the training depends on.
        store: the artifact store.
        prefix: key of the training in the store.
        output: local folder for checkpoints.
        base: the base model's folder.
        tokenizer: the base model's.
        contract: the response format.
        guard: runs the rewards.
        device: where it trains.
        stop: listens for signals.
        validation: the validation split.
        client: MLflow client; None on other ranks than 0.
        run_id: the MLflow run.
        total: optimizer steps of all stages.
    """

    inputs: TrainingInputs
    store: ArtifactStore
    prefix: str
    output: Path
    base: Path
    tokenizer: Any
    contract: Contract
    guard: RewardGuard
    device: Device
    stop: StopOnSignalCallback
    validation: Dataset
    client: Any
    run_id: str
    total: int


def run_stages(
    inputs: TrainingInputs, store: ArtifactStore, *, prefix: str, key: str, output: Path
) -> tuple[Reference, str]:
    """Run what is left of the training and store its adapter.

    Args:
        inputs: everything the training depends on.
        store: the artifact store.
        prefix: key of the training in the store.
        key: the training hash.
        output: local folder for checkpoints.

    Returns:
        The adapter's reference (rank 0 stores it) and the MLflow run's id.

    Raises:
        OutOfMemoryError: in one of several processes; all have to be started again.
    """
    stop = StopOnSignalCallback()
    stop.watch()
    contract = build_contract(inputs.contract)
    # The reward worker is started before anything touches CUDA: a process spawned later would inherit its context.
    with RewardGuard(inputs.rewards, inputs.contract, seed=inputs.seed + rank()) as guard:
        if inputs.training.threads:
            torch.set_num_threads(inputs.training.threads)
        device = find_device(use_cpu=bool(inputs.training.value("use_cpu")), processes=world_size())
        if device.processes > 1:
            if device.kind == "cpu":
                # accelerate calls a rank's CPU cpu:0, and torch.load (of the optimizer, in a resume) knows cpu alone.
                os.environ["ACCELERATE_TORCH_DEVICE"] = "cpu"
            PartialState(cpu=device.kind == "cpu")
        # Rank 0 fetches first: the others then find the files.
        base, train_rows, validation_rows = _in_turn(lambda: _fetch_inputs(inputs, store, output))
        halvings = from_first(read_halvings(store, key) if rank() == 0 else None)
        plans = _plan(inputs, train_rows, device, halvings)
        tokenizer = AutoTokenizer.from_pretrained(
            base, padding_side="left", trust_remote_code=inputs.model.trust_remote_code
        )
        client, run_id = _open_books(inputs, key, device)
        around = Surroundings(
            inputs=inputs, store=store, prefix=prefix, output=output, base=base, tokenizer=tokenizer,
            contract=contract, guard=guard, device=device, stop=stop, validation=validation_rows, client=client,
            run_id=run_id, total=sum(plan.steps for plan in plans),
        )  # fmt: skip
        monitor = _watch_system(inputs, run_id) if client is not None else None
        try:
            while True:
                try:
                    policy, progress = _run_all(around, plans)
                    break
                except RuntimeError as error:
                    if not is_out_of_memory(error):
                        raise
                # Outside the handler: the exception's frames hold the model that is to be freed.
                halvings = _halve(around, plans, key, halvings)
                plans = _plan(inputs, train_rows, device, halvings)
        except (GateFailedError, ResumableError) as error:
            if client is not None:
                set_tags(client, run_id, {"grpo.stopped": str(error)[:5000]})
                end_run(client, run_id, "FAILED" if isinstance(error, GateFailedError) else "KILLED")
            raise
        finally:
            if monitor is not None:
                monitor.finish()
        reference = from_first(str(_store_result(around, plans, policy, progress, key)) if rank() == 0 else None)
        return Reference.parse(reference), run_id


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether an error says that memory ran out, on a GPU or in the CPU allocator.

    Args:
        error: what was raised.
    """
    return isinstance(error, torch.OutOfMemoryError) or "DefaultCPUAllocator: can't allocate memory" in str(error)


def _in_turn(function: Callable[[], Any]) -> Any:
    """Call something on rank 0 first, then on the others."""
    if rank() != 0:
        wait_for_all()
    result = function()
    if rank() == 0:
        wait_for_all()
    return result


def _fetch_inputs(inputs: TrainingInputs, store: ArtifactStore, output: Path) -> tuple[Path, Dataset, Dataset]:
    """The base model's folder, and the training and validation rows."""
    cache = output / "cache"
    base = store.fetch(inputs.base, cache)
    dataset = store.fetch(inputs.dataset, cache)
    return (
        base,
        Dataset.from_parquet(str(dataset / "train.parquet"), cache_dir=str(cache)),
        Dataset.from_parquet(str(dataset / "validation.parquet"), cache_dir=str(cache)),
    )


def _open_books(inputs: TrainingInputs, key: str, device: Device) -> tuple[Any, str]:
    """The MLflow client (rank 0 only) and the run's id."""
    client, run_id = None, ""
    if rank() == 0:
        client = connect(inputs.tracking)
        run = open_run(client, inputs.tracking, name=inputs.run_name, key=key)
        run_id = run.run_id
        log.info("MLflow run %s (%s)", run_id, "taken up again" if run.resumed else "new")
        log_params(client, run_id, flatten(settings_of(inputs)))
        set_tags(client, run_id, {"grpo.device": device.name, **{f"version.{k}": v for k, v in versions().items()}})
    return client, from_first(run_id)


def _watch_system(inputs: TrainingInputs, run_id: str) -> Any:
    """Start reading CPU, memory, disk and GPU into the run, as MLflow does."""
    from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

    monitor = SystemMetricsMonitor(
        run_id, sampling_interval=SYSTEM_SECONDS, resume_logging=True, tracking_uri=inputs.tracking.uri
    )
    monitor.start()
    return monitor


def _plan(inputs: TrainingInputs, train_rows: Dataset, device: Device, halvings: int) -> list[StagePlan]:
    """Each stage's settings, rows and number of steps, or the reason why it cannot run."""
    plans: list[StagePlan] = []
    stages = inputs.all_stages()
    for index, stage in enumerate(stages):
        training = stage_training(inputs.training, stage)
        rows = _stage_rows(stage, training, train_rows, inputs.seed)
        batch = training.batch_plan(device.processes)
        for _ in range(halvings):
            batch = batch.smaller() or batch
        plans.append(
            StagePlan(
                index=index,
                stage=stage,
                training=training,
                rows=rows,
                steps=_stage_steps(stage, training, len(rows), device.processes),
                offset=sum(plan.steps for plan in plans),
                batch=batch,
                last=index == len(stages) - 1,
            )
        )
    return plans


def _stage_rows(stage: StageConfig, training: TrainingConfig, rows: Dataset, seed: int) -> Dataset:
    """The rows a stage learns from, in the order of its curriculum where it has one."""
    if stage.kind == "sft":
        rows = rows.filter(lambda row: bool(row["solution"]), keep_in_memory=True)
        if len(rows) == 0:
            raise BadInputError(
                f"stages[{stage.name}]: a supervised stage learns from worked answers and no training row has one; "
                "map data.columns.solution to a column that holds the reasoning, or leave the stage out"
            )
    if stage.rows is not None:
        rows = rows.select(range(min(stage.rows, len(rows))))
    if training.curriculum:
        rows = rows.select(in_order(rows, training.curriculum, seed))
    return rows


def in_order(rows: Dataset, column: str, seed: int) -> list[int]:
    """Row numbers from easy to hard; rows of equal difficulty in an order drawn by the seed.

    Args:
        rows: training rows.
        column: holds a number in each row.
        seed: run.seed.

    Raises:
        BadInputError: when the column is not there, or holds something else.
    """
    if column not in rows.column_names:
        raise BadInputError(
            f"training.curriculum: the rows have no column {column!r} (they have {', '.join(rows.column_names)}); "
            "name it under data.columns.keep"
        )
    values = rows[column][:]
    for index, value in enumerate(values):
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise BadInputError(
                f"training.curriculum: column {column!r} holds {value!r} in training row {index + 1}; it needs a "
                "number in every row, small for easy"
            )
    order = list(range(len(values)))
    random.Random(seed).shuffle(order)  # noqa: S311 (no secret)
    return sorted(order, key=lambda index: values[index])


def _stage_steps(stage: StageConfig, training: TrainingConfig, rows: int, processes: int) -> int:
    """Optimizer steps of a stage, at least 1."""
    if stage.kind == "grpo":
        return check_steps(training, rows, processes)
    max_steps = int(training.value("max_steps"))
    if max_steps > 0:
        return max_steps
    per_step = training.batch_plan(processes).completions
    return max(1, math.ceil(rows / per_step) * int(training.value("num_train_epochs")))


def _halve(around: Surroundings, plans: list[StagePlan], key: str, halvings: int) -> int:
    """After running out of memory: note a smaller micro-batch, or say that there is none."""
    gc.collect()
    if around.device.kind == "cuda":
        torch.cuda.empty_cache()
    smaller = [plan.batch.smaller() for plan in plans]
    if all(batch is None for batch in smaller):
        raise GateFailedError(
            "training stopped: out of memory with one completion at a time. Try a smaller "
            "training.max_completion_length or data.max_prompt_tokens, training.gradient_checkpointing: true, "
            "training.optim: adamw_8bit, lora.base_bits: 4, or a larger GPU (`grpo plan` estimates what fits)"
        )
    write_halvings(around.store, key, halvings + 1)
    batch = smaller[-1] or plans[-1].batch
    say(
        f"out of memory: going on from the last checkpoint with {batch.per_device} completions at once on each device "
        f"and {batch.accumulation} micro-batches, still {batch.completions} completions a step"
    )
    if around.device.processes > 1:
        raise OutOfMemoryError
    return halvings + 1


def _run_all(around: Surroundings, plans: list[StagePlan]) -> tuple[Any, Progress]:
    """Run the stages one after another on one policy."""
    policy = load_policy(around.inputs, around.base, around.device)
    progress = Progress()
    watched = around.inputs.lora is not None and around.inputs.training.generation != "transformers"
    before = fingerprint(policy) if watched else {}
    for plan in plans:
        policy = _run_stage(around, plan, policy, progress)
    if watched:
        moved = drift(before, fingerprint(policy))
        if around.client is not None:
            log_metrics(around.client, around.run_id, {"base_drift": moved}, step=around.total)
        if moved > 1e-3:
            say(
                f"the frozen base weights moved by {moved:.2%} while adapters were merged into them and taken out "
                "again for vLLM; write model.dtype: float32 to keep them"
            )
    return policy, progress


def _run_stage(around: Surroundings, plan: StagePlan, policy: Any, progress: Progress) -> Any:
    """Run one stage from its newest checkpoint, or take its result when it is finished; returns the policy."""
    store, stage, training = around.store, plan.stage, plan.training
    prefix = f"{around.prefix}/{plan.index}-{stage.name}"
    output = around.output / f"{plan.index}-{stage.name}"
    finished = from_first(_finished_stage(store, prefix, output) if rank() == 0 else None)
    if finished is not None and not finished.exists():
        finished = _finished_stage(store, prefix, output)  # another node than the first rank's
    if finished is not None:
        _restore_progress(progress, json.loads((finished / "progress.json").read_text(encoding="utf-8")))
        load_weights(policy, finished)
        return policy
    checkpoints = f"{prefix}/checkpoints"
    resume: Checkpoint | None = from_first(
        newest_checkpoint(store, checkpoints, output / "cache") if rank() == 0 else None
    )
    if resume is not None and not resume.directory.exists():
        resume = fetch_checkpoint(store, checkpoints, resume.step, output / "cache")
    state = _resumed_state(resume)
    samples = state["samples"] if resume else list(progress.samples)
    checks = [Check(check["step"], check["metrics"]) for check in state["checks"]]
    history = _resumed_history(resume) if resume else []
    uploader = mlflow = None
    if rank() == 0:
        provenance = {"kind": "checkpoint", "stage": stage.name, "mlflow_run_id": around.run_id}
        uploader = CheckpointUploader(store, checkpoints, keep=KEPT_CHECKPOINTS, provenance=provenance)
        mlflow = MlflowCallback(
            around.client,
            around.run_id,
            offset=plan.offset,
            prefix="" if stage.kind == "grpo" and plan.last else f"{stage.name}/",
        )
    choosing = stage.kind == "grpo" and plan.last and training.keep == "best"
    best = best_check(checks)
    if choosing and best and uploader:
        uploader.protect(best.step)
    moving = None
    if stage.kind == "grpo":
        weights = reward_weights(stage, {reward.name: reward.weight for reward in around.guard.rewards})
        named = dict(zip((reward.name for reward in around.guard.rewards), weights, strict=True))
        moving = moving_weights(training, named, plan.steps)
    validator = Validator(
        around.base, around.tokenizer, around.contract, around.validation, limit=training.validation_rows,
        max_new_tokens=int(training.value("max_completion_length")), version=versions()["transformers"],
    )  # fmt: skip
    validation = ValidationCallback(validator, checks, training, choosing=choosing, uploader=uploader, mlflow=mlflow)
    # Weights are looked at first: neither a check nor a checkpoint is made of a NaN.
    keeper = HistoryCallback(training.guards, history)
    callbacks: list[TrainerCallback] = [ProgressCallback(plan.offset, around.total)]
    callbacks += [mlflow] if mlflow is not None else []  # before the guards, so that what they stop at is shown
    callbacks += [keeper, validation]
    sampler = weigher = None
    if mlflow is not None:
        sampler = SampleCallback(
            training.sample_every, samples, offset=plan.offset, contract=around.contract, mlflow=mlflow
        )
        callbacks.append(sampler)
    if moving is not None and moving.moving:
        weigher = WeightsCallback(moving, mlflow)
        callbacks.append(weigher)
    callbacks += [CheckpointCallback(uploader, samples, checks, around.guard, moving), around.stop]
    trainer = _make_trainer(around, plan, policy, callbacks, output, moving.at(0) if moving else {})
    if stage.kind == "grpo":
        for callback in (sampler, weigher):
            if callback is not None:
                callback.trainer = trainer
    validation.policy = keeper.policy = trainer.accelerator.unwrap_model(trainer.model)
    if resume:
        around.guard.load_state_dict(state["rewards"])
        if moving is not None and state["weights"]:
            moving.load_state_dict(state["weights"])
        if mlflow is not None:
            mlflow.send_missing(history)
        log.info("stage %s goes on from step %d", stage.name, resume.step)
    started = time.monotonic()
    try:
        if resume and stopped_improving(checks, training.patience):
            load_weights(policy, resume.directory)
            trainer.state.global_step = resume.step
        else:
            trainer.train(resume_from_checkpoint=str(resume.directory) if resume else None)
    finally:
        # Also when a guard ends it: what was learned up to the last good checkpoint stays.
        progress.seconds += time.monotonic() - started
        if uploader is not None:
            uploader.wait()
        if mlflow is not None:
            mlflow.finish()
    step = trainer.state.global_step
    if around.stop.received is not None:
        raise ResumableError(
            f"stopped by {around.stop.received.name} at step {plan.offset + step} of {around.total}, checkpoint "
            "stored; the same command goes on from there"
        )
    if step == 0:
        raise PipelineError(f"stage {stage.name} made no step; this is a fault of the pipeline, please report it")
    policy = trainer.accelerator.unwrap_model(trainer.model)
    require_finite(policy)
    kept = step
    best = best_check(checks)
    if choosing and best and best.step != step and rank() == 0:
        kept = _take_best(store, checkpoints, best, policy, output / "cache", last=step)
    progress.history += [{**row, "step": row["step"] + plan.offset, "stage": stage.name} for row in history]
    progress.samples[:] = samples
    progress.stages.append({"name": stage.name, "kind": stage.kind, "steps": step})
    progress.checks += [{**asdict(check), "step": check.step + plan.offset, "stage": stage.name} for check in checks]
    progress.chosen_step = plan.offset + kept
    if not plan.last and rank() == 0:
        result = output / "finished"
        save_policy(policy, around.tokenizer, result)
        (result / "progress.json").write_text(json.dumps(asdict(progress)), encoding="utf-8")
        store.put(result, f"{prefix}/finished", provenance={"kind": "stage", "stage": stage.name})
    wait_for_all()
    return policy


def _make_trainer(
    around: Surroundings,
    plan: StagePlan,
    policy: Any,
    callbacks: list[TrainerCallback],
    output: Path,
    weights: dict[str, float],
) -> Any:
    """TRL's trainer of a stage."""
    inputs, training, rows = around.inputs, plan.training, plan.rows
    if plan.stage.kind == "sft":
        contract = around.contract
        return SFTTrainer(
            model=policy,
            args=sft_arguments(
                training, around.device, plan.batch, inputs.tracking, seed=inputs.seed, output=output, max_length=None
            ),
            train_dataset=rows.map(
                lambda row: {
                    "prompt": row["prompt"],
                    "completion": [{"role": "assistant", "content": contract.write(row["solution"], row["answer"])}],
                },
                remove_columns=rows.column_names,
                keep_in_memory=True,
            ),
            processing_class=around.tokenizer,
            callbacks=callbacks,
        )
    return MeasuredGRPOTrainer(
        model=policy,
        reward_funcs=around.guard.functions(),
        args=grpo_arguments(
            training,
            around.device,
            plan.batch,
            inputs.tracking,
            seed=inputs.seed,
            output=output,
            weights=list(weights.values()),
            longest_prompt=max(rows["prompt_tokens"]) if len(rows) else 0,
        ),
        train_dataset=rows,
        processing_class=around.tokenizer,
        callbacks=callbacks,
    )


def _take_best(store: ArtifactStore, checkpoints: str, best: Check, policy: Any, cache: Path, *, last: int) -> int:
    """Put the best step's weights into the policy; the last ones stay when its checkpoint is gone or damaged."""
    reference = store.find(f"{checkpoints}/checkpoint-{best.step}")
    try:
        if reference is None:
            raise PipelineError("it is not in the store")
        load_weights(policy, store.fetch(reference, cache))
    except PipelineError as error:
        say(f"the checkpoint of the best step {best.step} cannot be used ({error}); the last step {last} goes on")
        return last
    say(f"step {best.step} goes on to the merge: the best on validation rows ({describe(best.metrics)})")
    return best.step


def _store_result(around: Surroundings, plans: list[StagePlan], policy: Any, progress: Progress, key: str) -> Reference:
    """Write adapter, record and samples, and store them (rank 0)."""
    inputs, client, run_id = around.inputs, around.client, around.run_id
    validation = next(
        (dict(check["metrics"]) for check in progress.checks if check["step"] == progress.chosen_step), {}
    )
    final = around.output / "adapter"
    save_policy(policy, around.tokenizer, final)
    _write_samples(progress.samples, final)
    write_record(
        TrainingRecord(
            key=key, mlflow_run_id=run_id, run_name=inputs.run_name, stages=progress.stages,
            history=progress.history, validation=validation, settings=settings_of(inputs),
            versions={**versions(), "device": around.device.name}, seconds=round(progress.seconds, 2),
            tokens=max((row.get("num_tokens", 0.0) for row in progress.history), default=0.0),
            peak_memory_mib=_peak_memory(around.device), chosen_step=progress.chosen_step, checks=progress.checks,
            batch=asdict(plans[-1].batch),
        ),
        final,
    )  # fmt: skip
    _log_samples(client, run_id, progress.samples)
    reference = around.store.put(
        final,
        f"{around.prefix}/adapter",
        provenance={
            "kind": "adapter" if inputs.lora else "model",
            "base": str(inputs.base),
            "dataset": str(inputs.dataset),
            "training": key,
            "mlflow_run_id": run_id,
            "measured": _measured(around, plans[-1], policy, progress),
        },
    )
    set_tags(client, run_id, {"grpo.adapter": str(reference), "grpo.chosen_step": str(progress.chosen_step)})
    return reference


def _measured(around: Surroundings, plan: StagePlan, policy: Any, progress: Progress) -> dict[str, Any] | None:
    """How long a step of the last stage took, for `grpo plan`; None where no step was timed."""
    times = [row["step_time"] for row in progress.history if row.get("step_time") and row["stage"] == plan.stage.name]
    if not times:
        return None
    model = policy.get_base_model() if isinstance(policy, PeftModel) else policy
    # Adapter weights sit inside the base model's modules; quantised weights are packed, so their count is not used.
    added = (".lora_", ".modules_to_save.")
    parameters = sum(p.numel() for name, p in model.named_parameters() if not any(part in name for part in added))
    shape = measured_shape(
        parameters=parameters, training=plan.training, batch=plan.batch, full=around.inputs.lora is None
    )
    return {"shape": shape, "seconds_per_step": round(statistics.median(times), 4), "device": around.device.name}


def _finished_stage(store: ArtifactStore, prefix: str, output: Path) -> Path | None:
    """The folder of a stage that has ended, or None."""
    finished = store.find(f"{prefix}/finished")
    return store.fetch(finished, output / "cache") if finished is not None else None


def _restore_progress(progress: Progress, state: dict[str, Any]) -> None:
    """Take up what a finished stage recorded."""
    for name, value in state.items():
        setattr(progress, name, value)


def _resumed_state(checkpoint: Checkpoint | None) -> dict[str, Any]:
    """The pipeline's own state up to a checkpoint."""
    if checkpoint is None:
        return {"samples": [], "checks": [], "rewards": {}, "weights": None}
    state: dict[str, Any] = json.loads((checkpoint.directory / STATE_FILE).read_text(encoding="utf-8"))
    return state


def _resumed_history(checkpoint: Checkpoint) -> list[dict[str, Any]]:
    """Logged rows up to a checkpoint, from the trainer's own state."""
    state = json.loads((checkpoint.directory / "trainer_state.json").read_text(encoding="utf-8"))
    return [row for row in state["log_history"] if "loss" in row or "reward" in row]


def _write_samples(samples: list[dict[str, Any]], directory: Path) -> None:
    """The completions kept, as a table beside the adapter."""
    if samples:
        Dataset.from_list(samples).to_parquet(str(directory / "completions.parquet"))


def _log_samples(client: Any, run_id: str, samples: list[dict[str, Any]]) -> None:
    """The completions kept, as a table in MLflow."""
    if samples:
        import pandas

        client.log_table(run_id, pandas.DataFrame(samples), artifact_file="completions.json")


def _peak_memory(device: Device) -> float:
    """Most memory held so far, in MiB."""
    if device.kind == "cuda":
        return round(torch.cuda.max_memory_allocated() / 2**20, 1)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (2**20 if sys.platform == "darwin" else 2**10), 1)

"""Runs the stages of a training on one policy, each resumable by itself. Called by train.py; imports torch, trl."""

import json
import logging
import math
import os
import resource
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import PeftModel, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, set_seed
from trl import GRPOTrainer, SFTTrainer

from components.contract import Contract, build_contract
from components.errors import BadInputError, GateFailedError, PipelineError, ResumableError
from components.generation.interface import EngineIdentity, Sampling
from components.generation.transformers_engine import TransformersGenerator
from components.rewards.guard import RewardGuard
from components.storage.references import Reference
from components.storage.store import ArtifactStore
from components.tracking.runs import connect, flatten, log_metrics, log_params, open_run, set_tags
from components.train_grpo.arguments import (
    Device,
    base_dtype,
    find_device,
    grpo_arguments,
    peft_config,
    sft_arguments,
)
from components.train_grpo.callbacks import (
    REWARD_STATE_FILE,
    SAMPLES_FILE,
    CheckpointCallback,
    HistoryCallback,
    MlflowCallback,
    ProgressCallback,
    SampleCallback,
    StopOnSignalCallback,
)
from components.train_grpo.checkpoints import Checkpoint, CheckpointUploader, newest_checkpoint
from components.train_grpo.config import StageConfig, TrainingConfig, check_steps, stage_training
from components.train_grpo.record import TrainingRecord, write_record
from components.train_grpo.train import TrainingInputs, reward_weights, settings_of, versions

log = logging.getLogger(__name__)

KEPT_CHECKPOINTS = 2
"""Complete checkpoints that stay in the store while a stage runs: the newest, and the one before in case of damage."""


@dataclass
class Progress:
    """What accumulates over the stages (and is taken up again with a checkpoint).

    Attributes:
        history: logged rows of all stages.
        samples: completions kept.
        stages: finished stages: name, kind, steps.
        seconds: training time.
    """

    history: list[dict[str, Any]] = field(default_factory=list)
    samples: list[dict[str, Any]] = field(default_factory=list)
    stages: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0


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
        The adapter's reference and the MLflow run's id.
    """
    stop = StopOnSignalCallback()
    stop.watch()
    contract = build_contract(inputs.contract)
    # The reward worker is started before anything touches CUDA: a process spawned later would inherit its context.
    with RewardGuard(inputs.rewards, inputs.contract, seed=inputs.seed + int(os.environ.get("RANK", "0"))) as guard:
        if inputs.training.threads:
            torch.set_num_threads(inputs.training.threads)
        device = find_device(
            use_cpu=bool(inputs.training.value("use_cpu")), processes=int(os.environ.get("WORLD_SIZE", "1"))
        )
        base_directory = store.fetch(inputs.base, output / "cache")
        dataset_directory = store.fetch(inputs.dataset, output / "cache")
        train_rows = Dataset.from_parquet(str(dataset_directory / "train.parquet"), cache_dir=str(output / "cache"))
        validation_rows = Dataset.from_parquet(
            str(dataset_directory / "validation.parquet"), cache_dir=str(output / "cache")
        )
        plans = [_plan(inputs, stage, train_rows, device) for stage in inputs.all_stages()]
        total = sum(steps for _, _, _, steps in plans)

        client = connect(inputs.tracking)
        run = open_run(client, inputs.tracking, name=inputs.run_name, key=key)
        log.info("MLflow run %s (%s)", run.run_id, "taken up again" if run.resumed else "new")
        log_params(client, run.run_id, flatten(settings_of(inputs)))
        set_tags(client, run.run_id, {"grpo.device": device.name, **{f"version.{k}": v for k, v in versions().items()}})

        tokenizer = AutoTokenizer.from_pretrained(
            base_directory, padding_side="left", trust_remote_code=inputs.model.trust_remote_code
        )
        policy = _load_policy(inputs, base_directory, device)
        progress = Progress()
        offset = 0
        for index, (stage, training, rows, steps) in enumerate(plans):
            stage_prefix = f"{prefix}/{index}-{stage.name}"
            policy = _run_stage(
                inputs, store, stage, training, rows, policy,
                tokenizer=tokenizer, contract=contract, guard=guard, device=device, stop=stop,
                client=client, run_id=run.run_id, prefix=stage_prefix, output=output / f"{index}-{stage.name}",
                offset=offset, total=total, progress=progress, last=index == len(plans) - 1,
            )  # fmt: skip
            offset += steps
        validation = _validate(policy, tokenizer, contract, validation_rows, inputs, base_directory)
        log_metrics(client, run.run_id, validation, step=total)
        final = output / "adapter"
        _save_policy(policy, tokenizer, final)
        _write_samples(progress.samples, final)
        write_record(
            TrainingRecord(
                key=key, mlflow_run_id=run.run_id, run_name=inputs.run_name, stages=progress.stages,
                history=progress.history, validation=validation, settings=settings_of(inputs),
                versions={**versions(), "device": device.name}, seconds=round(progress.seconds, 2),
                tokens=max((row.get("num_tokens", 0.0) for row in progress.history), default=0.0),
                peak_memory_mib=_peak_memory(device),
            ),
            final,
        )  # fmt: skip
        _log_samples(client, run.run_id, progress.samples)
        reference = store.put(
            final,
            f"{prefix}/adapter",
            provenance={
                "kind": "adapter" if inputs.lora else "model",
                "base": str(inputs.base),
                "dataset": str(inputs.dataset),
                "training": key,
                "mlflow_run_id": run.run_id,
            },
        )
        set_tags(client, run.run_id, {"grpo.adapter": str(reference)})
        return reference, run.run_id


def _plan(
    inputs: TrainingInputs, stage: StageConfig, train_rows: Dataset, device: Device
) -> tuple[StageConfig, TrainingConfig, Dataset, int]:
    """A stage's settings, rows and number of steps, or the reason why it cannot run."""
    training = stage_training(inputs.training, stage)
    rows = train_rows
    if stage.kind == "sft":
        rows = rows.filter(lambda row: bool(row["solution"]), keep_in_memory=True)
        if len(rows) == 0:
            raise BadInputError(
                f"stages[{stage.name}]: a supervised stage learns from worked answers and no training row has one; "
                "map data.columns.solution to a column that holds the reasoning, or leave the stage out"
            )
    if stage.rows is not None:
        rows = rows.select(range(min(stage.rows, len(rows))))
    if stage.kind == "grpo":
        return stage, training, rows, check_steps(training, len(rows), device.processes)
    max_steps = int(training.value("max_steps"))
    if max_steps > 0:
        return stage, training, rows, max_steps
    per_step = training.batch_plan(device.processes).completions
    return stage, training, rows, max(1, math.ceil(len(rows) / per_step) * int(training.value("num_train_epochs")))


def _load_policy(inputs: TrainingInputs, directory: Path, device: Device) -> Any:
    """The base model as it will be trained."""
    if inputs.model.backend == "unsloth":
        raise BadInputError(
            "model.backend: unsloth is not installed in this environment; install unsloth in the train image, or write "
            "backend: transformers"
        )
    attention = None if inputs.model.attention == "auto" else inputs.model.attention
    model = AutoModelForCausalLM.from_pretrained(
        directory,
        dtype=base_dtype(inputs.model.dtype, device),
        attn_implementation=attention,
        trust_remote_code=inputs.model.trust_remote_code,
        local_files_only=True,
    )
    if inputs.lora is None:
        return model
    # LoRA's A matrices are drawn at random: seeded here, so that a replicate differs and a repeat does not.
    set_seed(inputs.seed)
    return get_peft_model(model, peft_config(inputs.lora))


def _run_stage(
    inputs: TrainingInputs,
    store: ArtifactStore,
    stage: StageConfig,
    training: TrainingConfig,
    rows: Dataset,
    policy: Any,
    *,
    tokenizer: Any,
    contract: Contract,
    guard: RewardGuard,
    device: Device,
    stop: StopOnSignalCallback,
    client: Any,
    run_id: str,
    prefix: str,
    output: Path,
    offset: int,
    total: int,
    progress: Progress,
    last: bool,
) -> Any:
    """Run one stage from its newest checkpoint, or take its result when it is finished; returns the policy."""
    finished = store.find(f"{prefix}/finished")
    if finished is not None:
        directory = store.fetch(finished, output / "cache")
        _restore_progress(progress, json.loads((directory / "progress.json").read_text(encoding="utf-8")))
        _load_weights(policy, directory)
        return policy
    checkpoints = f"{prefix}/checkpoints"
    resume = newest_checkpoint(store, checkpoints, output / "cache")
    uploader = CheckpointUploader(
        store, checkpoints, keep=KEPT_CHECKPOINTS, provenance={"kind": "checkpoint", "stage": stage.name}
    )
    samples = _resumed_samples(resume) if resume else list(progress.samples)
    history = _resumed_history(resume) if resume else []
    main = stage.kind == "grpo" and last
    mlflow = MlflowCallback(client, run_id, offset=offset, prefix="" if main else f"{stage.name}/")
    sampler = SampleCallback(training.sample_every, samples, offset=offset)
    callbacks = [
        ProgressCallback(offset, total),
        mlflow,
        HistoryCallback(training.guards, history),
        sampler,
        CheckpointCallback(uploader, samples, guard),
        stop,
    ]
    longest = max(rows["prompt_tokens"]) if len(rows) else 0
    if stage.kind == "sft":
        trainer: Any = SFTTrainer(
            model=policy,
            args=sft_arguments(training, device, seed=inputs.seed, output=output, max_length=None),
            train_dataset=rows.map(
                lambda row: {
                    "prompt": row["prompt"],
                    "completion": [{"role": "assistant", "content": contract.write(row["solution"], row["answer"])}],
                },
                remove_columns=rows.column_names,
                keep_in_memory=True,
            ),
            processing_class=tokenizer,
            callbacks=callbacks,
        )
    else:
        weights = reward_weights(stage, {reward.name: reward.weight for reward in guard.rewards})
        trainer = GRPOTrainer(
            model=policy,
            reward_funcs=guard.functions(),
            args=grpo_arguments(
                training, device, seed=inputs.seed, output=output, weights=weights, longest_prompt=longest
            ),
            train_dataset=rows,
            processing_class=tokenizer,
            callbacks=callbacks,
        )
        sampler.trainer = trainer
    if resume:
        guard.load_state_dict(json.loads((resume.directory / REWARD_STATE_FILE).read_text(encoding="utf-8")))
        mlflow.send_missing(history)
        log.info("stage %s goes on from step %d", stage.name, resume.step)
    started = time.monotonic()
    trainer.train(resume_from_checkpoint=str(resume.directory) if resume else None)
    progress.seconds += time.monotonic() - started
    uploader.wait()
    if stop.received is not None:
        raise ResumableError(
            f"stopped by {stop.received.name} at step {offset + trainer.state.global_step} of {total}, checkpoint "
            "stored; the same command goes on from there"
        )
    if trainer.state.global_step == 0:
        raise PipelineError(f"stage {stage.name} made no step; this is a fault of the pipeline, please report it")
    _require_finite(policy, stage.name)
    progress.history += [{**row, "step": row["step"] + offset, "stage": stage.name} for row in history]
    progress.samples[:] = samples
    progress.stages.append({"name": stage.name, "kind": stage.kind, "steps": trainer.state.global_step})
    if not last:
        result = output / "finished"
        _save_policy(trainer.model, tokenizer, result)
        state = {
            "history": progress.history,
            "samples": progress.samples,
            "stages": progress.stages,
            "seconds": progress.seconds,
        }
        (result / "progress.json").write_text(json.dumps(state), encoding="utf-8")
        store.put(result, f"{prefix}/finished", provenance={"kind": "stage", "stage": stage.name})
    return trainer.accelerator.unwrap_model(trainer.model)


def _restore_progress(progress: Progress, state: dict[str, Any]) -> None:
    """Take up what a finished stage recorded."""
    progress.history[:] = state["history"]
    progress.samples[:] = state["samples"]
    progress.stages[:] = state["stages"]
    progress.seconds = state["seconds"]


def _resumed_samples(checkpoint: Checkpoint) -> list[dict[str, Any]]:
    """Completions kept up to a checkpoint."""
    samples: list[dict[str, Any]] = json.loads((checkpoint.directory / SAMPLES_FILE).read_text(encoding="utf-8"))
    return samples


def _resumed_history(checkpoint: Checkpoint) -> list[dict[str, Any]]:
    """Logged rows up to a checkpoint, from the trainer's own state."""
    state = json.loads((checkpoint.directory / "trainer_state.json").read_text(encoding="utf-8"))
    return [row for row in state["log_history"] if "loss" in row or "reward" in row]


def _load_weights(policy: Any, directory: Path) -> None:
    """Put a finished stage's weights into the policy."""
    if isinstance(policy, PeftModel):
        from peft import set_peft_model_state_dict

        set_peft_model_state_dict(policy, load_file(directory / "adapter_model.safetensors"))
        return
    for file in sorted(directory.glob("*.safetensors")):
        policy.load_state_dict(load_file(file), strict=False)


def _save_policy(policy: Any, tokenizer: Any, directory: Path) -> None:
    """Write adapter (or model) and tokenizer as safetensors."""
    directory.mkdir(parents=True, exist_ok=True)
    if isinstance(policy, PeftModel):
        # A second GRPO stage with beta > 0 adds a frozen "ref" adapter; only the trained one goes on. Where the base
        # came from is in the manifest: a path of this machine would mean nothing elsewhere.
        policy.peft_config["default"].base_model_name_or_path = None
        policy.save_pretrained(directory, selected_adapters=["default"])
    else:
        policy.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def _require_finite(policy: Any, stage: str) -> None:
    """Refuse to hand on weights that hold a NaN or an infinity."""
    for name, parameter in policy.named_parameters():
        if parameter.requires_grad and not bool(torch.isfinite(parameter).all()):
            raise GateFailedError(
                f"stage {stage}: weight {name} is not finite; the last good checkpoint is kept. Try a lower "
                "training.learning_rate, training.max_grad_norm: 0.1, or model.dtype: float32"
            )


def _validate(
    policy: Any, tokenizer: Any, contract: Contract, rows: Dataset, inputs: TrainingInputs, directory: Path
) -> dict[str, float]:
    """Format compliance and accuracy of greedy completions on the first validation rows."""
    rows = rows.select(range(min(inputs.training.validation_rows, len(rows))))
    if len(rows) == 0:
        return {}
    model = policy.get_base_model() if isinstance(policy, PeftModel) else policy
    policy.eval()
    identity = EngineIdentity(
        "transformers", versions()["transformers"], str(model.dtype).removeprefix("torch."), model.device.type
    )
    generator = TransformersGenerator(directory, model, tokenizer, identity, None)
    prompts = [contract.render(tokenizer, row) for row in rows]
    limit = int(inputs.training.value("max_completion_length"))
    texts = [answers[0].text for answers in generator.generate(prompts, Sampling(max_new_tokens=limit))]
    strict = [contract.check(text).strict for text in texts]
    read = [contract.read_answer(text) for text in texts]
    right = [
        answer is not None and contract.equal(answer, row["answer"]) for answer, row in zip(read, rows, strict=True)
    ]
    return {
        "validation/format_compliance": sum(strict) / len(texts),
        "validation/accuracy_strict": sum(s and r for s, r in zip(strict, right, strict=True)) / len(texts),
        "validation/rows": float(len(texts)),
    }


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

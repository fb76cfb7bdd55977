"""From the config's sections to what TRL and PEFT are given, with what the device can do decided here and said.

Called by stages.py. Imports torch, trl and peft.
"""

import dataclasses
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig as PeftLoraConfig
from trl import GRPOConfig, SFTConfig

from components.errors import BadInputError
from components.tracking.config import TrackingConfig
from components.train_grpo.batches import BatchPlan
from components.train_grpo.config import LoraConfig, TrainingConfig


@dataclass(frozen=True)
class Device:
    """What the training process computes on.

    Attributes:
        kind: cpu or cuda.
        name: the device's own name.
        processes: training processes in all (torchrun's WORLD_SIZE).
        bf16: whether it computes in bfloat16.
    """

    kind: str
    name: str
    processes: int
    bf16: bool


def find_device(*, use_cpu: bool, processes: int) -> Device:
    """The device this process trains on.

    Args:
        use_cpu: stay on the CPU although there is a GPU.
        processes: training processes in all.
    """
    if torch.cuda.is_available() and not use_cpu:
        # Emulated bfloat16 (before Ampere) is slower than float32.
        bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
        return Device("cuda", torch.cuda.get_device_name(), processes, bf16)
    return Device("cpu", "CPU", processes, bf16=False)


def base_dtype(wanted: str, device: Device) -> torch.dtype:
    """The dtype the base model is loaded in.

    Args:
        wanted: model.dtype of the config: auto, float32, bfloat16 or float16.
        device: where it will compute.

    Returns:
        bfloat16 for `auto` on a GPU that has it, float32 otherwise; the wanted one when named.
    """
    if wanted == "auto":
        return torch.bfloat16 if device.bf16 else torch.float32
    dtype = getattr(torch, wanted)
    if not isinstance(dtype, torch.dtype):
        raise BadInputError(f"model.dtype: {wanted!r} is not a dtype; write auto, float32, bfloat16 or float16")
    return dtype


def peft_config(lora: LoraConfig) -> PeftLoraConfig:
    """PEFT's config for the adapter.

    Args:
        lora: the config section.
    """
    return PeftLoraConfig(
        task_type="CAUSAL_LM",
        r=lora.r,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=lora.target_modules,
        use_rslora=lora.use_rslora,
        use_dora=lora.use_dora,
        modules_to_save=lora.modules_to_save,
    )


def attention(wanted: str, device: Device) -> str | None:
    """The attention implementation to load the model with.

    Args:
        wanted: model.attention of the config.
        device: where it will compute.

    Returns:
        Its name for transformers, or None for the library's own choice (SDPA where the model has it).

    Raises:
        BadInputError: when FlashAttention 2 is asked for where it cannot run.
    """
    if wanted != "flash_attention_2":
        return None if wanted == "auto" else wanted
    if device.kind == "cpu":
        raise BadInputError("model.attention: flash_attention_2 needs a GPU and there is none here; write auto")
    if find_spec("flash_attn") is None:
        raise BadInputError(
            "model.attention: flash_attention_2 is not installed here (package flash-attn); install it in the train "
            "image, or write sdpa"
        )
    return wanted


def optimizer(wanted: str, device: Device) -> str:
    """The optimizer there can be here: 8-bit ones need a GPU and bitsandbytes, else their 32-bit form is taken.

    Args:
        wanted: training.optim.
        device: where it will compute.
    """
    if "8bit" not in wanted or (device.kind == "cuda" and find_spec("bitsandbytes") is not None):
        return wanted
    return "adamw_torch"


def trackers(tracking: TrackingConfig) -> list[str] | str:
    """TRL's `report_to`: what gets the metrics besides MLflow.

    Args:
        tracking: the config section.

    Raises:
        BadInputError: when a tracker is not installed.
    """
    for name in tracking.also:
        if find_spec(name) is None:
            raise BadInputError(
                f"tracking.also: {name} is not installed here; install it in the train image, or write also: []"
            )
    return list(tracking.also) or "none"


def common_arguments(
    training: TrainingConfig, device: Device, plan: BatchPlan, tracking: TrackingConfig, *, seed: int, output: Path
) -> dict[str, Any]:
    """What the pipeline sets for every trainer.

    Args:
        training: the section, stage overrides applied.
        device: where it trains.
        plan: the batch of one step.
        tracking: the config section.
        seed: run.seed.
        output: local folder for checkpoints.
    """
    values = training.trl_values()
    settings: dict[str, Any] = {
        "output_dir": str(output),
        "seed": seed,
        "report_to": trackers(tracking),
        "disable_tqdm": True,
        "save_strategy": "steps",
        "save_total_limit": None,  # pruned after the upload, by checkpoints.py
        "logging_nan_inf_filter": False,  # the guards must see a NaN, not the last good value
        "per_device_train_batch_size": plan.per_device,
        "gradient_accumulation_steps": plan.accumulation,
    }
    wanted = str(training.value("optim"))
    if optimizer(wanted, device) != wanted:
        settings["optim"] = optimizer(wanted, device)
    if device.kind == "cpu":
        settings |= {"use_cpu": True, "bf16": False, "fp16": False, "dataloader_pin_memory": False}
        settings |= {"gradient_checkpointing": bool(values.get("gradient_checkpointing", False))}
    else:
        settings["bf16"] = values.get("bf16", device.bf16 and not values.get("fp16", False))
    return settings


def grpo_arguments(
    training: TrainingConfig,
    device: Device,
    plan: BatchPlan,
    tracking: TrackingConfig,
    *,
    seed: int,
    output: Path,
    weights: list[float],
    longest_prompt: int,
) -> GRPOConfig:
    """TRL's config of a GRPO stage.

    Args:
        training: the section, stage overrides applied.
        device: where it trains.
        plan: the batch of one step.
        tracking: the config section.
        seed: run.seed.
        output: local folder for checkpoints.
        weights: reward weights, in the order of the reward functions.
        longest_prompt: tokens of the longest training prompt (for vLLM's context length).

    Raises:
        BadInputError: when TRL refuses a combination of values.
    """
    values = training.trl_values()
    settings = values | common_arguments(training, device, plan, tracking, seed=seed, output=output)
    settings["reward_weights"] = weights
    settings["num_generations"] = int(training.value("num_generations"))
    planned = training.batch_plan(plan.processes)
    if plan.per_device < planned.per_device:
        # After an out-of-memory: fewer completions are generated at once too, where groups stay whole. What was asked
        # for in `steps_per_generation` (reuse over several steps) keeps its meaning in completions.
        factor = planned.per_device // plan.per_device
        if values.get("steps_per_generation"):
            settings["steps_per_generation"] = int(values["steps_per_generation"]) * factor
        elif not values.get("generation_batch_size"):
            settings["steps_per_generation"] = plan.rounds(planned.accumulation)
    if training.curriculum:
        settings["shuffle_dataset"] = False
    if training.generation != "transformers":
        if device.kind == "cpu":
            raise BadInputError(
                f"training.generation: {training.generation} needs a GPU and there is none here; write transformers"
            )
        if find_spec("vllm") is None:
            raise BadInputError(
                f"training.generation: {training.generation} needs vllm, which is not installed here; install the "
                "extra (pip install 'grpo-pipeline[vllm]') in the train image, or write transformers"
            )
        settings["use_vllm"] = True
        settings["vllm_mode"] = training.generation.removeprefix("vllm-")
        settings.setdefault("vllm_max_model_length", longest_prompt + int(training.value("max_completion_length")))
        # Sequence-level masking drops long completions: their log-ratios add up (TRL's default is sequence_mask).
        settings.setdefault("vllm_importance_sampling_mode", "token_truncate")
    try:
        return GRPOConfig(**settings)
    except (ValueError, TypeError) as error:
        raise BadInputError(f"training: TRL refuses these values: {error}") from error


def sft_arguments(
    training: TrainingConfig,
    device: Device,
    plan: BatchPlan,
    tracking: TrackingConfig,
    *,
    seed: int,
    output: Path,
    max_length: int | None,
) -> SFTConfig:
    """TRL's config of a supervised stage: the same values, those that only GRPO has left out.

    Args:
        training: the section, stage overrides applied.
        device: where it trains.
        plan: the batch of one step.
        tracking: the config section.
        seed: run.seed.
        output: local folder for checkpoints.
        max_length: tokens a row is cut to; None cuts nothing.
    """
    names = {field.name for field in dataclasses.fields(SFTConfig)}
    settings = {name: value for name, value in training.trl_values().items() if name in names}
    settings |= common_arguments(training, device, plan, tracking, seed=seed, output=output)
    if training.curriculum:
        settings["train_sampling_strategy"] = "sequential"
    try:
        return SFTConfig(**settings, max_length=max_length, completion_only_loss=True)
    except (ValueError, TypeError) as error:
        raise BadInputError(f"training: TRL refuses these values for a supervised stage: {error}") from error


def chosen(training: TrainingConfig, device: Device, dtype: torch.dtype, attention: str) -> str:
    """What was chosen by what the device can do, in one line for the log.

    Args:
        training: the section.
        device: where it trains.
        dtype: of the base weights.
        attention: implementation the model was loaded with.
    """
    wanted = str(training.value("optim"))
    took = optimizer(wanted, device)
    instead = f" instead of {wanted}, which needs a GPU and bitsandbytes" if took != wanted else ""
    weights = str(dtype).removeprefix("torch.")
    return (
        f"on {device.name} in {device.processes} process(es): base weights in {weights}, attention {attention}, "
        f"optimizer {took}{instead}"
    )

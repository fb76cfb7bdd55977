"""The policy: the base model loaded for training, its weights read and written. Called by stages.py."""

import logging
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel, get_peft_model, prepare_model_for_kbit_training, set_peft_model_state_dict
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, set_seed

from components.errors import BadInputError
from components.train_grpo.arguments import Device, attention, base_dtype, chosen, peft_config
from components.train_grpo.train import TrainingInputs

log = logging.getLogger(__name__)


def load_policy(inputs: TrainingInputs, directory: Path, device: Device) -> Any:
    """The base model as it will be trained, with its adapter where there is one.

    Args:
        inputs: model, lora and training sections, seed.
        directory: the base model's folder.
        device: where it trains.

    Raises:
        BadInputError: when what is asked for cannot be had here.
    """
    bits = inputs.lora.base_bits if inputs.lora else 16
    if bits < 16 and device.kind == "cpu":
        raise BadInputError(f"lora.base_bits: {bits} needs a GPU and there is none here; write 16")
    if inputs.model.backend == "unsloth":
        return _load_with_unsloth(inputs, directory, bits)
    dtype = base_dtype(inputs.model.dtype, device)
    options: dict[str, Any] = {}
    if bits < 16:
        options["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=bits == 4,
            load_in_8bit=bits == 8,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=dtype,
        )
    model = AutoModelForCausalLM.from_pretrained(
        directory,
        dtype=dtype,
        attn_implementation=attention(inputs.model.attention, device),
        trust_remote_code=inputs.model.trust_remote_code,
        local_files_only=True,
        **options,
    )
    log.info("%s", chosen(inputs.training, device, dtype, str(model.config._attn_implementation)))
    if inputs.lora is None:
        return model
    if bits < 16:
        model = prepare_model_for_kbit_training(
            model, use_gradient_checkpointing=bool(inputs.training.value("gradient_checkpointing"))
        )
    # LoRA's A matrices are drawn at random: seeded here, so that a replicate differs and a repeat does not.
    set_seed(inputs.seed)
    return get_peft_model(model, peft_config(inputs.lora))


def _load_with_unsloth(inputs: TrainingInputs, directory: Path, bits: int) -> Any:
    """The base model loaded and patched by unsloth (which train.py imported before transformers)."""
    from unsloth import FastLanguageModel

    longest = int(inputs.training.value("max_completion_length")) + 4096
    model, _ = FastLanguageModel.from_pretrained(
        model_name=str(directory),
        max_seq_length=longest,
        dtype=None if inputs.model.dtype == "auto" else getattr(torch, inputs.model.dtype),
        load_in_4bit=bits == 4,
        load_in_8bit=bits == 8,
        full_finetuning=inputs.lora is None,
    )
    if inputs.lora is None:
        return model
    return FastLanguageModel.get_peft_model(
        model,
        r=inputs.lora.r,
        lora_alpha=inputs.lora.alpha,
        lora_dropout=inputs.lora.dropout,
        target_modules=inputs.lora.target_modules,
        use_rslora=inputs.lora.use_rslora,
        modules_to_save=inputs.lora.modules_to_save,
        use_gradient_checkpointing="unsloth",
        random_state=inputs.seed,
    )


def load_weights(policy: Any, directory: Path) -> None:
    """Put a finished stage's or a checkpoint's weights into the policy.

    Args:
        policy: the model being trained, not wrapped.
        directory: holds safetensors.
    """
    if isinstance(policy, PeftModel):
        set_peft_model_state_dict(policy, load_file(directory / "adapter_model.safetensors"))
        return
    for file in sorted(directory.glob("*.safetensors")):
        policy.load_state_dict(load_file(file), strict=False)


def save_policy(policy: Any, tokenizer: Any, directory: Path) -> None:
    """Write adapter (or model) and tokenizer as safetensors.

    Args:
        policy: the model being trained, not wrapped.
        tokenizer: its tokenizer.
        directory: made when missing.
    """
    directory.mkdir(parents=True, exist_ok=True)
    if isinstance(policy, PeftModel):
        # A second GRPO stage with beta > 0 adds a frozen "ref" adapter; only the trained one goes on. Where the base
        # came from is in the manifest: a path of this machine would mean nothing elsewhere.
        policy.peft_config["default"].base_model_name_or_path = None
        policy.save_pretrained(directory, selected_adapters=["default"])
    else:
        policy.save_pretrained(directory)
    tokenizer.save_pretrained(directory)

"""`grpo plan`: what a config will cost before anything runs: steps, tokens, checkpoints, memory, and time where a
training of the same shape was measured in this store.

Called by commands_plan.py. Builds the model without weights (on torch's meta device) to count its parameters;
trains nothing and reads no weights. Memory is an estimate (components/train_grpo/memory.py), time a measurement.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from components.errors import BadInputError, PipelineError
from components.import_model.config import ModelConfig
from components.storage.store import open_store
from components.train_grpo.batches import BatchPlan
from components.train_grpo.config import LoraConfig, StageConfig, TrainingConfig, check_steps, stage_training
from components.train_grpo.memory import GPU_MEMORY_GIB, Load, ModelShape, estimate, optimizer_bytes, remedies
from components.train_grpo.shape import measured_shape
from pipeline.config import RunConfig

COUNTED_ROWS = 2_000_000
"""Training rows counted at most."""


@dataclass(frozen=True)
class StagePlan:
    """One stage.

    Attributes:
        name: its name.
        kind: grpo or sft.
        steps: optimizer steps.
        batch: the batch of a step.
        completions: completions generated in all (0 for a supervised stage).
        tokens: most tokens generated in all.
        checkpoints: checkpoints written.
    """

    name: str
    kind: str
    steps: int
    batch: BatchPlan
    completions: int
    tokens: int
    checkpoints: int


@dataclass(frozen=True)
class Plan:
    """What a run will cost.

    Attributes:
        shape: the model's.
        stages: one each.
        load: how the heaviest stage is trained.
        memory: GiB by purpose on one device, with `total`.
        device: the GPU's name, or "CPU".
        device_gib: its memory; None where it is not known.
        changes: what to change when it does not fit, with the total it leads to.
        checkpoint_gib: size of one checkpoint.
        seconds_per_step: measured in this store on a training of this shape, with the device; None without one.
    """

    shape: ModelShape
    stages: tuple[StagePlan, ...]
    load: Load
    memory: dict[str, float]
    device: str
    device_gib: float | None
    changes: tuple[tuple[str, float], ...]
    checkpoint_gib: float
    seconds_per_step: tuple[float, str] | None

    @property
    def fits(self) -> bool | None:
        """Whether it fits; None where the device's memory is not known."""
        return None if self.device_gib is None else self.memory["total"] <= self.device_gib

    @property
    def steps(self) -> int:
        """Optimizer steps of all stages."""
        return sum(stage.steps for stage in self.stages)


def make_plan(config: RunConfig, *, gpu: str | None, model_config: Path | None, rows: int | None) -> Plan:
    """Plan a run.

    Args:
        config: the run config.
        gpu: a GPU's name (see GPU_MEMORY_GIB) or its memory in GiB; None plans for this machine.
        model_config: a config.json to read the model's shape from instead of model.source.
        rows: training rows; None counts them where steps depend on them.

    Raises:
        BadInputError: when the model's shape or the rows cannot be read, or no step comes out.
    """
    training = config.training
    device, gib = _device(gpu, training)
    shape = _shape(_model_config(config.model, model_config), config.lora)
    stages = config.stages or [StageConfig(name="grpo")]
    if rows is None and any(int(stage_training(training, s).value("max_steps")) <= 0 for s in stages):
        rows = _count_rows(config)
    plans = tuple(_stage(stage, stage_training(training, stage), rows) for stage in stages)
    loads = [_load(config, stage_training(training, stage), plan) for stage, plan in zip(stages, plans, strict=True)]
    gpu_gib = gib if device != "CPU" else None
    load = max(loads, key=lambda load: estimate(shape, load, gpu_gib=gpu_gib)["total"])
    memory = estimate(shape, load, gpu_gib=gpu_gib)
    changes = remedies(shape, load, gpu_gib=gib) if gib is not None and memory["total"] > gib else []
    trained = shape.parameters if load.full else shape.adapter_parameters
    bytes_each = load.weight_bytes if load.full else 4
    return Plan(
        shape=shape,
        stages=plans,
        load=load,
        memory=memory,
        device=device,
        device_gib=gib,
        changes=tuple(changes),
        checkpoint_gib=trained * (bytes_each + load.optimizer_bytes) / 2**30,
        seconds_per_step=_measured(config, shape, plans[-1].batch),
    )


def plan_lines(plan: Plan) -> list[str]:
    """The plan for a person.

    Args:
        plan: from `make_plan`.
    """
    lines = [f"model     {_count(plan.shape.parameters)} parameters"]
    if plan.shape.adapter_parameters:
        share = plan.shape.adapter_parameters / plan.shape.parameters
        lines[0] += f", {_count(plan.shape.adapter_parameters)} of the adapter trained ({share:.2%})"
    for stage in plan.stages:
        batch = stage.batch
        text = f"stage     {stage.name} ({stage.kind}): {stage.steps:,} steps of {batch.completions} "
        if stage.kind == "sft":
            text += "rows"
        else:
            text += f"completions ({batch.prompts} prompts x G {batch.group_size})"
        text += f" = {batch.per_device} x {batch.accumulation} micro-batches x {batch.processes} process(es)"
        if stage.tokens:
            text += f"; {stage.completions:,} completions, at most {_count(stage.tokens)} tokens"
        lines.append(f"{text}; {stage.checkpoints} checkpoints of {_gib(plan.checkpoint_gib)}")
    parts = [f"{name} {_gib(value)}" for name, value in plan.memory.items() if name != "total" and value > 0]
    lines.append(f"memory    about {_gib(plan.memory['total'])} on each device: {', '.join(parts)}")
    if plan.fits is None:
        lines.append("device    name one with --gpu (such as --gpu L4, or --gpu 24 for its GiB) to see whether it fits")
    elif plan.fits:
        lines.append(f"device    {plan.device}, {plan.device_gib:.0f} GiB: fits")
    else:
        lines.append(f"device    {plan.device}, {plan.device_gib:.0f} GiB: does not fit; change, in this order")
        lines += [f"          {words}: then about {_gib(total)}" for words, total in plan.changes]
        if not plan.changes or plan.changes[-1][1] > (plan.device_gib or 0):
            lines.append("          and that is still not enough: a smaller model or a larger GPU")
    if plan.seconds_per_step is None:
        lines.append("time      not known: no training of this shape was measured in this store yet")
    else:
        seconds, device = plan.seconds_per_step
        total = seconds * plan.steps
        lines.append(f"time      about {_duration(total)} ({seconds:.2f} s a step, measured on {device})")
    return lines


def _device(gpu: str | None, training: TrainingConfig) -> tuple[str, float | None]:
    """The device's name and memory in GiB."""
    if gpu is None:
        if training.value("use_cpu"):
            return "CPU", _ram_gib()
        import torch

        if torch.cuda.is_available():
            return torch.cuda.get_device_name(), torch.cuda.get_device_properties(0).total_memory / 2**30
        return "no GPU named", None
    if re.fullmatch(r"\d+(\.\d+)?", gpu):
        return "GPU", float(gpu)
    if gpu.lower() == "cpu":
        return "CPU", _ram_gib()
    plain = {name.replace("-", "").lower(): name for name in GPU_MEMORY_GIB}
    wanted = re.sub(r"nvidia|geforce|tesla|[\s_-]|gb$", "", gpu.lower())
    if wanted not in plain:
        raise BadInputError(
            f"--gpu {gpu!r} is not known; write its memory in GiB (--gpu 24), or one of {', '.join(GPU_MEMORY_GIB)}"
        )
    return plain[wanted], GPU_MEMORY_GIB[plain[wanted]]


def _ram_gib() -> float | None:
    """This machine's memory in GiB (Linux), None elsewhere."""
    try:
        found = re.search(r"MemTotal:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    except OSError:
        return None
    return int(found[1]) / 2**20 if found else None


def _model_config(model: ModelConfig, given: Path | None) -> Path:
    """The config.json that says the model's shape."""
    mend = "write --model-config FILE with a copy of the model's config.json"
    if given is not None:
        if not given.is_file():
            raise BadInputError(f"--model-config {given} is not a file; name a model's config.json")
        return given
    kind = model.kind()
    if kind == "folder":
        return Path(model.source) / "config.json"
    if kind != "hub":
        raise BadInputError(f"model.source: the shape of {model.source} is not read without importing it; {mend}")
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(hf_hub_download(model.source, "config.json", revision=model.revision))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise BadInputError(f"model.source: the config of {model.source} cannot be read ({first}); {mend}") from error


def _shape(config_file: Path, lora: LoraConfig | None) -> ModelShape:
    """The model's shape, from the model built without weights."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        values = json.loads(config_file.read_text(encoding="utf-8"))
        config = AutoConfig.for_model(values.pop("model_type"), **values)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
    except (OSError, KeyError, ValueError, AttributeError) as error:
        raise BadInputError(f"{config_file}: no causal language model can be made from it ({error})") from error
    text = config.get_text_config()
    output = model.get_output_embeddings()
    linear = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and module is not output
    }
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return ModelShape(
        parameters=sum(p.numel() for p in model.parameters()),
        linear_parameters=sum(module.weight.numel() for module in linear.values()),
        adapter_parameters=_adapter_parameters(model, linear, lora) if lora else 0,
        layers=text.num_hidden_layers,
        hidden=text.hidden_size,
        vocabulary=text.vocab_size,
        kv_width=heads * size,
    )


def _adapter_parameters(model: Any, linear: dict[str, Any], lora: LoraConfig) -> int:
    """Numbers an adapter adds: r times inputs plus outputs of each layer it is put on."""
    wanted = lora.target_modules
    chosen = [module for name, module in linear.items() if wanted == "all-linear" or name.rpartition(".")[2] in wanted]
    if not chosen:
        known = sorted({name.rpartition(".")[2] for name in linear})
        raise BadInputError(
            f"lora.target_modules: the model has none of {', '.join(wanted)}; its linear layers are {', '.join(known)}"
        )
    whole = sum(
        p.numel()
        for name, p in model.named_parameters()
        if any(f".{saved}." in f".{name}" for saved in lora.modules_to_save or [])
    )
    return whole + sum(lora.r * (module.in_features + module.out_features) for module in chosen)


def _count_rows(config: RunConfig) -> int:
    """Training rows, about: those a first reading finds, without validation rows and overlong prompts taken out."""
    from components.contract import build_contract
    from pipeline.rewards_commands import read_raw_rows

    rows = len(read_raw_rows(config, build_contract(config.contract), COUNTED_ROWS))
    return max(1, rows - int(getattr(config.data, "validation_rows", 0) or 0))


def _stage(stage: StageConfig, training: TrainingConfig, rows: int | None) -> StagePlan:
    """Steps, tokens and checkpoints of a stage."""
    batch = training.batch_plan()
    max_steps = int(training.value("max_steps"))
    if stage.rows is not None and rows is not None:
        rows = min(rows, stage.rows)
    if max_steps > 0:
        steps = max_steps
    elif stage.kind == "sft":
        steps = max(1, -(-(rows or 0) // batch.completions) * int(training.value("num_train_epochs")))
    else:
        steps = check_steps(training, rows or 0)
    completions = steps * batch.completions if stage.kind == "grpo" else 0
    save = int(training.value("save_steps"))
    return StagePlan(
        name=stage.name,
        kind=stage.kind,
        steps=steps,
        batch=batch,
        completions=completions,
        tokens=completions * int(training.value("max_completion_length")),
        checkpoints=-(-steps // save),
    )


def _load(config: RunConfig, training: TrainingConfig, plan: StagePlan) -> Load:
    """How a stage is trained, as the estimate takes it."""
    values = training.trl_values()
    cpu = bool(training.value("use_cpu"))
    dtype = config.model.dtype
    weight_bytes = 4 if dtype == "float32" or (dtype == "auto" and cpu) else 2
    full = config.lora is None
    batch = plan.batch
    share = float(training.value("vllm_gpu_memory_utilization") or 0.0)
    return Load(
        weight_bytes=weight_bytes,
        base_bits=config.lora.base_bits if config.lora else 16,
        full=full,
        optimizer_bytes=optimizer_bytes(str(training.value("optim")), weight_bytes if full else 4),
        checkpointing=bool(values.get("gradient_checkpointing", not cpu)),
        micro_batch=batch.per_device,
        generated=batch.per_device * batch.accumulation if plan.kind == "grpo" else 0,
        prompt=config.data.max_prompt_tokens or 512,
        completion=int(training.value("max_completion_length")),
        reference=full and float(training.value("beta")) > 0,
        vllm_share=share if training.generation == "vllm-colocate" else 0.0,
    )


def _measured(config: RunConfig, shape: ModelShape, batch: BatchPlan) -> tuple[float, str] | None:
    """Seconds a step of the newest training of this shape in the store, and its device."""
    wanted = measured_shape(
        parameters=shape.parameters, training=config.training, batch=batch, full=config.lora is None
    )
    store = open_store(config.store)
    try:
        keys: Sequence[str] = [key for key in store.keys("training") if key.endswith("/adapter")]
        for key in reversed(keys):
            facts = store.read_manifest(key).provenance.get("measured")
            if isinstance(facts, dict) and facts.get("shape") == wanted:
                return float(facts["seconds_per_step"]), str(facts["device"])
    except PipelineError:
        return None
    return None


def _count(number: float) -> str:
    """A large number in short."""
    for limit, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= limit:
            return f"{number / limit:.3g} {unit}"
    return f"{number:.0f}"


def _gib(value: float) -> str:
    """A size in GiB, or MiB when small."""
    return f"{value:.1f} GiB" if value >= 0.1 else f"{value * 1024:.1f} MiB"


def _duration(seconds: float) -> str:
    """A time in words."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"

"""How much memory a training needs on each device, estimated from the model's shape. Light: arithmetic only.

Called by `grpo plan`. Every process holds the whole model (data parallel, nothing sharded). Sources:
activations of a layer after Korthikanti et al. 2022 ("Reducing Activation Recomputation in Large Transformer Models":
34 bytes a token and hidden unit at 16 bits, without the attention scores that SDPA and FlashAttention never store);
AdamW's two states after Loshchilov and Hutter 2019; NF4 with double quantisation at 4.127 bits a weight after Dettmers
et al. 2023 (QLoRA). An estimate: kernels, fragmentation and the library's buffers are a flat share.
"""

from dataclasses import dataclass, replace

GIB = 2.0**30

NF4_BYTES = 4.127 / 8
"""Bytes of a weight in 4-bit NormalFloat with double quantisation."""

LAYER_BYTES = 34
"""Bytes of activations a token and hidden unit in one layer at 16 bits."""

LOGITS_COPIES = 3
"""Copies of the scores that are alive at once: as computed, in float32 for the log-softmax, and their gradient."""

OVERHEAD_SHARE = 0.1
"""Fragmentation and buffers, as a share of the rest."""

GPU_CONTEXT_GIB = 0.8
"""What CUDA and its libraries hold before the first tensor."""

GPU_MEMORY_GIB = {
    "T4": 15.0, "V100-16": 16.0, "V100-32": 32.0, "L4": 22.5, "A10": 22.5, "A10G": 22.5, "RTX3090": 24.0,
    "RTX4090": 24.0, "RTX5090": 32.0, "A6000": 48.0, "L40S": 45.0, "A100-40": 40.0, "A100": 80.0, "A100-80": 80.0,
    "H100": 80.0, "H200": 140.0, "B200": 180.0,
}  # fmt: skip
"""Usable memory of common GPUs in GiB, from their data sheets."""


@dataclass(frozen=True)
class ModelShape:
    """What of a model decides the memory it takes.

    Attributes:
        parameters: all weights.
        linear_parameters: those in linear layers inside the blocks (what 4 bits apply to).
        adapter_parameters: of the adapter; 0 without one.
        layers: transformer blocks.
        hidden: width.
        vocabulary: tokens it scores.
        kv_width: key (or value) numbers a token and layer: key heads times head size.
    """

    parameters: int
    linear_parameters: int
    adapter_parameters: int
    layers: int
    hidden: int
    vocabulary: int
    kv_width: int


@dataclass(frozen=True)
class Load:
    """How it is trained.

    Attributes:
        weight_bytes: bytes of a base weight: 2 or 4.
        base_bits: 16, or 8 or 4 for a quantised base.
        full: whether all weights are trained.
        optimizer_bytes: bytes of optimizer state a trained parameter's number: 2 states of 4, 2 or 1 bytes.
        checkpointing: gradient checkpointing.
        micro_batch: completions in one forward and backward pass.
        generated: completions generated at once on a device.
        prompt: tokens of the longest prompt.
        completion: tokens of the longest completion.
        reference: whether a frozen copy is kept beside it (beta > 0 in full fine-tuning).
        vllm_share: share of the GPU that vLLM beside the trainer takes; 0 without.
    """

    weight_bytes: int
    base_bits: int
    full: bool
    optimizer_bytes: float
    checkpointing: bool
    micro_batch: int
    generated: int
    prompt: int
    completion: int
    reference: bool = False
    vllm_share: float = 0.0


def estimate(shape: ModelShape, load: Load, *, gpu_gib: float | None = None) -> dict[str, float]:
    """Memory by purpose on one device, in GiB.

    Args:
        shape: the model's.
        load: how it is trained.
        gpu_gib: the device's memory (what vLLM's share is of); None for a CPU.

    Returns:
        GiB by purpose; `total` is what has to fit.
    """
    quantised = shape.linear_parameters if load.base_bits < 16 else 0
    bytes_quantised = NF4_BYTES if load.base_bits == 4 else 1.0
    weights = (shape.parameters - quantised) * load.weight_bytes + quantised * bytes_quantised
    trained = shape.parameters if load.full else shape.adapter_parameters
    # PEFT keeps adapters in float32 beside a 16-bit base.
    trained_bytes = load.weight_bytes if load.full else 4
    tokens = load.micro_batch * (load.prompt + load.completion)
    layer = LAYER_BYTES * shape.hidden * load.weight_bytes / 2
    kept = shape.hidden * load.weight_bytes * shape.layers + layer if load.checkpointing else layer * shape.layers
    scores = load.micro_batch * load.completion * shape.vocabulary
    cache = 0.0
    if not load.vllm_share:
        columns = load.generated * (load.prompt + load.completion)
        cache = 2 * columns * shape.layers * shape.kv_width * load.weight_bytes
    parts = {
        "weights": weights * (2 if load.reference else 1),
        "adapter": 0.0 if load.full else shape.adapter_parameters * 4.0,
        "gradients": trained * trained_bytes,
        "optimizer": trained * load.optimizer_bytes,
        "activations": tokens * kept,
        "logits": scores * (load.weight_bytes + 4.0 * (LOGITS_COPIES - 1)),
        "key/value cache": cache,
    }
    # Generation and update follow each other: their peaks do not add up.
    update = parts["activations"] + parts["logits"] + parts["gradients"]
    held = parts["weights"] + parts["adapter"] + parts["optimizer"]
    total = (held + max(update, parts["key/value cache"])) * (1 + OVERHEAD_SHARE)
    result = {name: value / GIB for name, value in parts.items()}
    result["vLLM"] = load.vllm_share * (gpu_gib or 0.0)
    result["total"] = total / GIB + result["vLLM"] + (GPU_CONTEXT_GIB if gpu_gib else 0.0)
    return result


def remedies(shape: ModelShape, load: Load, *, gpu_gib: float | None) -> list[tuple[str, float]]:
    """What to change, each alone and each on top of those before, with the total it leads to.

    Args:
        shape: the model's.
        load: how it is trained now.
        gpu_gib: the device's memory.

    Returns:
        Changes in words with the total in GiB when this one and all before it are made; only those that help.
    """
    found: list[tuple[str, float]] = []
    now = estimate(shape, load, gpu_gib=gpu_gib)["total"]
    steps: list[tuple[str, Load]] = []
    if not load.checkpointing:
        steps.append(("training.gradient_checkpointing: true", replace(load, checkpointing=True)))
    current = steps[-1][1] if steps else load
    micro, generated = current.micro_batch, current.generated
    while micro > 1:
        micro //= 2
        generated = max(micro, generated // 2)
        current = replace(current, micro_batch=micro, generated=generated)
        steps.append((f"training.per_device_train_batch_size: {micro} (the step stays as large)", current))
    if current.optimizer_bytes > 2:
        current = replace(current, optimizer_bytes=2)
        steps.append(("training.optim: adamw_8bit", current))
    if not current.full and current.base_bits > 4:
        current = replace(current, base_bits=4)
        steps.append(("lora.base_bits: 4 (QLoRA)", current))
    if current.full:
        current = replace(current, full=False, reference=False)
        steps.append(("lora: {r: 16} instead of all weights", current))
    if current.completion > 256:
        current = replace(current, completion=current.completion // 2)
        steps.append((f"training.max_completion_length: {current.completion}", current))
    for words, changed in steps:
        total = estimate(shape, changed, gpu_gib=gpu_gib)["total"]
        if total < now * 0.99:
            found.append((words, total))
            now = total
        if gpu_gib is not None and total <= gpu_gib:
            break
    return found


def optimizer_bytes(name: str, parameter_bytes: int) -> float:
    """Bytes of optimizer state a trained number.

    Args:
        name: training.optim.
        parameter_bytes: bytes of a trained weight.
    """
    if "8bit" in name:
        return 2.0
    if "adafactor" in name:
        return 0.1 * parameter_bytes
    if name.startswith("sgd"):
        return 0.0
    return 2.0 * parameter_bytes

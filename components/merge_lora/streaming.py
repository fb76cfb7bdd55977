"""Streams a base model's weights through an adapter's edits into new weight files.

Used by `merge` and measured by bench/merge.py. Tensors the adapter leaves alone pass in pieces of some megabytes; an
edited one is held whole with its update, in 32 bit, and rounded once to what is written. Peak memory is that of the
largest edited tensor, whatever the size of the model. A whole fine-tuned model counts as an edit of every tensor.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

from components.errors import BadInputError, PipelineError
from components.merge_lora.adapter import CONFIG, HEAD, AdapterPlan, Edit, apply_edit, is_tied, match_name, plan_edits
from components.merge_lora.carrying import read_config
from components.merge_lora.config import MergeConfig
from components.merge_lora.weights import CheckpointWriter, Planned, Tensor, read_checkpoint
from components.steps import report_progress


@dataclass
class WrittenWeights:
    """What was written, and what was seen on the way.

    Attributes:
        is_adapter: an adapter was merged; otherwise a whole model was taken over.
        dtype: the dtype of most of the weights, such as `bfloat16`.
        files: weight files.
        tensors: tensors written.
        edited: of these, those that training touched.
        adapter_tensors: tensors of the adapter (or trained model), all of them used.
        untied: output heads that are no longer tied to the embedding.
        targets: module path in the model -> tensor name, of low-rank updates.
        edited_elements: elements of edited tensors.
        changed_elements: of these, those whose written value differs from the base's.
        update_norm: Frobenius norm over all low-rank updates before rounding.
        unchanged: edited tensors of which no element changed.
        not_finite: tensors with NaN or infinity.
    """

    is_adapter: bool
    dtype: str
    adapter_tensors: int
    untied: tuple[str, ...]
    targets: dict[str, str]
    tensors: int
    edited: int
    files: list[str] = field(default_factory=list)
    edited_elements: int = 0
    changed_elements: int = 0
    update_norm: float = 0.0
    unchanged: list[str] = field(default_factory=list)
    not_finite: list[str] = field(default_factory=list)


def write_merged(base_directory: Path, trained_directory: Path, merge: MergeConfig, out: Path) -> WrittenWeights:
    """Stream the merged weights into a directory.

    Args:
        base_directory: the base model.
        trained_directory: an adapter or a whole model.
        merge: dtype and shard size.
        out: created; weight files and their index are written there.

    Raises:
        BadInputError: when the two do not fit together.
        PipelineError: when the disk refuses.
    """
    config = read_config(base_directory)
    base = read_checkpoint(base_directory)
    if is_tied(config, base):
        # Some checkpoints hold the head a second time although it is the embedding.
        base = {name: tensor for name, tensor in base.items() if name != HEAD}
    is_adapter = (trained_directory / CONFIG).exists()
    plan = plan_edits(trained_directory, base, config) if is_adapter else _plan_whole_model(trained_directory, base)
    sources = base | {name: base[str(plan.edits[name].source)] for name in plan.untied}
    planned = [
        Planned(name, _written_dtype(tensor.dtype, merge.dtype), tensor.shape) for name, tensor in sources.items()
    ]
    written = WrittenWeights(
        is_adapter=is_adapter,
        dtype=_most_common_dtype(planned),
        adapter_tensors=plan.keys,
        untied=plan.untied,
        targets=plan.targets,
        tensors=len(planned),
        edited=len(plan.edits),
    )
    dtypes = {item.name: item.dtype for item in planned}
    try:
        out.mkdir(parents=True, exist_ok=True)
        writer = CheckpointWriter(out, planned, int(merge.max_shard_gib * (1 << 30)))
        for done, name in enumerate(writer.order, start=1):
            writer.begin(name)
            if name in plan.edits:
                _write_edited(name, plan.edits[name], sources[name], dtypes[name], writer, written)
            else:
                _write_untouched(sources[name], dtypes[name], writer, written)
            report_progress("merge_lora", done, len(planned), unit="tensor")
        written.files = writer.close()
    except OSError as error:
        raise PipelineError(f"the merged weights could not be written to {out}: {error}; free space there") from error
    written.update_norm **= 0.5
    return written


def _write_untouched(source: Tensor, dtype: torch.dtype, writer: CheckpointWriter, written: WrittenWeights) -> None:
    finite = True
    for piece in source.pieces():
        values = piece.to(dtype)
        finite = finite and _is_finite(values)
        writer.write(values)
    if not finite:
        written.not_finite.append(source.name)


def _write_edited(
    name: str, edit: Edit, source: Tensor, dtype: torch.dtype, writer: CheckpointWriter, written: WrittenWeights
) -> None:
    before = source.read()
    merged, squared_norm = apply_edit(edit, before)
    values = merged.to(dtype).contiguous()
    changed = int(torch.count_nonzero(values != before.to(dtype)))
    if not changed and edit != Edit(source=edit.source):
        written.unchanged.append(name)
    if not _is_finite(values):
        written.not_finite.append(name)
    written.edited_elements += values.numel()
    written.changed_elements += changed
    written.update_norm += squared_norm
    writer.write(values)


def _is_finite(values: torch.Tensor) -> bool:
    # A sum over a NaN or an infinity is neither; only a sum that overflows by itself needs the slow look.
    if not values.is_floating_point() or bool(torch.isfinite(values.sum(dtype=torch.float32))):
        return True
    return bool(torch.isfinite(values).all())


def _written_dtype(stored: torch.dtype, wanted: str) -> torch.dtype:
    return stored if wanted == "base" or not stored.is_floating_point else getattr(torch, wanted)


def _most_common_dtype(planned: list[Planned]) -> str:
    elements: dict[str, int] = {}
    for item in planned:
        name = str(item.dtype).removeprefix("torch.")
        elements[name] = elements.get(name, 0) + item.size // item.dtype.itemsize
    return max(elements, key=lambda name: elements[name])


def _plan_whole_model(trained: Path, base: Mapping[str, Tensor]) -> AdapterPlan:
    """A full fine-tune as edits: each tensor replaced."""
    tensors = read_checkpoint(trained)
    edits: dict[str, Edit] = {}
    for stored_name, tensor in tensors.items():
        name = match_name(stored_name, base)
        if name is None:
            if stored_name == HEAD:
                continue  # a second copy of the embedding it is tied to
            raise BadInputError(f"{trained}: the base model has no {stored_name}; they are different models")
        if tensor.shape != base[name].shape:
            raise BadInputError(
                f"{trained}: {stored_name} has shape {tensor.shape} and the base's {base[name].shape}; "
                "they are different models, or the vocabulary was resized"
            )
        edits[name] = Edit(replacement=tensor)
    missing = sorted(set(base) - set(edits))
    if missing:
        raise BadInputError(f"{trained}: it has no {missing[0]}, which the base model has; it is not the whole model")
    return AdapterPlan(edits=edits, untied=(), keys=len(tensors))

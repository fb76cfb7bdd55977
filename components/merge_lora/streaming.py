"""Streams a base model's weights through an adapter's edits into new weight files.

Used by `merge` and measured by bench/merge.py. Tensors pass in small pieces, sums are made in 32 bit and rounded once
to what is written. Peak memory is that of the largest edited tensor's update (and of the tensor itself, where the edit
is more than a sum), whatever the size of the model. A whole fine-tuned model counts as an edit of every tensor.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from components.errors import BadInputError, PipelineError
from components.merge_lora.adapter import (
    CONFIG,
    HEAD,
    AdapterPlan,
    Edit,
    LowRank,
    apply_edit,
    is_tied,
    match_name,
    plan_edits,
)
from components.merge_lora.carrying import read_config
from components.merge_lora.config import MergeConfig
from components.merge_lora.weights import PIECE_ELEMENTS, CheckpointWriter, Planned, Tensor, read_checkpoint
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
    summed = [math.prod(sources[name].shape) for name, edit in plan.edits.items() if edit.is_sum]
    scratch = torch.empty(max(summed, default=0))
    try:
        out.mkdir(parents=True, exist_ok=True)
        writer = CheckpointWriter(out, planned, int(merge.max_shard_gib * (1 << 30)))
        with _one_thread():
            for done, name in enumerate(writer.order, start=1):
                writer.begin(name)
                if name in plan.edits:
                    _write_edited(name, plan.edits[name], sources[name], dtypes[name], scratch, writer, written)
                else:
                    _write_untouched(sources[name], dtypes[name], writer, written)
                report_progress("merge_lora", done, len(planned), unit="tensor")
        written.files = writer.close()
    except OSError as error:
        raise PipelineError(f"the merged weights could not be written to {out}: {error}; free space there") from error
    written.update_norm **= 0.5
    return written


@contextmanager
def _one_thread() -> Iterator[None]:
    """Work on one thread: the pieces are too small to share, and the disk is slower than one core."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _write_untouched(source: Tensor, dtype: torch.dtype, writer: CheckpointWriter, written: WrittenWeights) -> None:
    finite = True
    for piece in source.pieces():
        values = piece.to(dtype)
        finite = finite and _is_finite(values)
        writer.write(values)
    if not finite:
        written.not_finite.append(source.name)


class _Edited:
    """Collects what is worth knowing of an edited tensor while its pieces pass."""

    def __init__(self) -> None:
        self.finite = True
        self.changed = 0
        self.squared_norm = 0.0

    def see(self, before: torch.Tensor, after: torch.Tensor) -> None:
        self.finite = self.finite and _is_finite(after)
        self.changed += int(np.count_nonzero(_bits(before) != _bits(after)))


def _write_edited(
    name: str,
    edit: Edit,
    source: Tensor,
    dtype: torch.dtype,
    scratch: torch.Tensor,
    writer: CheckpointWriter,
    written: WrittenWeights,
) -> None:
    seen = _Edited()
    if edit.low_rank is not None and edit.is_sum:
        _write_sum(edit.low_rank, source, dtype, scratch, writer, seen)
    else:
        before = source.read()
        merged, seen.squared_norm = apply_edit(edit, before)
        after = merged.to(dtype).contiguous()
        seen.see(before.to(dtype), after)
        writer.write(after)
    if not seen.finite:
        written.not_finite.append(name)
    if not seen.changed and edit != Edit(source=edit.source):
        written.unchanged.append(name)
    written.edited_elements += math.prod(source.shape)
    written.changed_elements += seen.changed
    written.update_norm += seen.squared_norm


def _write_sum(
    update: LowRank, source: Tensor, dtype: torch.dtype, scratch: torch.Tensor, writer: CheckpointWriter, seen: _Edited
) -> None:
    """`weight + scaling * product`, some rows at a time, so that all but the product happens in the cache."""
    delta = update.product(scratch)
    columns = source.shape[1]
    rows = max(1, PIECE_ELEMENTS // columns)
    seen.squared_norm = update.squared_norm()
    start = 0
    for piece in source.pieces(rows * columns):
        count = piece.numel() // columns
        total = delta[start : start + count].contiguous().view(-1).mul_(update.scaling)
        after = total.add_(piece).to(dtype)
        seen.see(piece.to(dtype), after)
        writer.write(after)
        start += count
    if not seen.squared_norm:
        seen.changed = 0  # adding zero turns -0.0 into 0.0, which is no change


def _bits(values: torch.Tensor) -> np.ndarray:
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[values.dtype.itemsize]
    return values.view(integers).numpy()


def _is_finite(values: torch.Tensor) -> bool:
    # A sum over a NaN or an infinity is neither; only a sum that overflows by itself needs the slow look.
    if not values.is_floating_point() or math.isfinite(float(values.sum())):
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

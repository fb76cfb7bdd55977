"""Streams a base model's weights through an adapter's edits into new weight files.

Used by `merge` and measured in bench/. Tensors pass in small pieces, sums are made in 32 bit and rounded once
to what is written. Peak memory is that of the largest edited tensor's update (and of the tensor itself, where the edit
is more than a sum) on each of up to four threads, whatever the size of the model. A whole fine-tuned model counts as an
edit of every tensor.
"""

import math
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
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
from components.merge_lora.weights import (
    PIECE_ELEMENTS,
    CheckpointWriter,
    Planned,
    Tensor,
    TensorWriter,
    read_checkpoint,
)
from components.steps import report_progress

MOST_THREADS = 4
"""Tensors worked on at once, each on a thread with memory of its own; more would only wait for the disk."""


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
    try:
        out.mkdir(parents=True, exist_ok=True)
        with CheckpointWriter(out, planned, int(merge.max_shard_gib * (1 << 30))) as writer:
            work = _Work(plan.edits, sources, {item.name: item.dtype for item in planned}, writer)
            for done, tensor in enumerate(work.do(), start=1):
                tensor.add_to(written)
                report_progress("merge_lora", done, len(planned), unit="tensor")
            writer.close()
            written.files = writer.files
    except OSError as error:
        raise PipelineError(f"the merged weights could not be written to {out}: {error}; free space there") from error
    written.update_norm **= 0.5
    return written


class _Tensor:
    """Collects what is worth knowing of one tensor while its pieces pass."""

    def __init__(self, name: str, *, adapted: bool, elements: int) -> None:
        self.name = name
        self.adapted = adapted
        self.elements = elements
        self.finite = True
        self.changed = 0
        self.squared_norm = 0.0

    def see(self, before: torch.Tensor, after: torch.Tensor) -> None:
        self.finite = self.finite and _is_finite(after)
        if self.adapted:
            self.changed += int(np.count_nonzero(_bits(before) != _bits(after)))

    def add_to(self, written: WrittenWeights) -> None:
        if not self.finite:
            written.not_finite.append(self.name)
        if self.adapted:
            written.edited_elements += self.elements
            written.changed_elements += self.changed
            written.update_norm += self.squared_norm
            if not self.changed:
                written.unchanged.append(self.name)


class _Work:
    """The tensors to write, some at a time, each on one thread from its first element to its last."""

    def __init__(
        self,
        edits: Mapping[str, Edit],
        sources: Mapping[str, Tensor],
        dtypes: Mapping[str, torch.dtype],
        writer: CheckpointWriter,
    ) -> None:
        self._edits = edits
        self._sources = sources
        self._dtypes = dtypes
        self._writer = writer
        self._scratch_size = max((math.prod(sources[name].shape) for name, e in edits.items() if e.is_sum), default=0)
        self._of_thread = threading.local()

    def do(self) -> Iterator[_Tensor]:
        """Write all tensors; yields what was seen of each, in their order."""
        # Operations on pieces are too small to share among threads: barriers would cost more than the work.
        threads = torch.get_num_threads()
        workers = min(threads, MOST_THREADS)
        torch.set_num_threads(1)
        try:
            with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
                yield from pool.map(self._write, self._sources)
        finally:
            torch.set_num_threads(threads)

    def _write(self, name: str) -> _Tensor:
        source, dtype, edit = self._sources[name], self._dtypes[name], self._edits.get(name)
        writer = self._writer.begin(name)
        # A head that is only split off from the embedding is written as it was.
        adapted = edit is not None and edit != Edit(source=edit.source)
        tensor = _Tensor(name, adapted=adapted, elements=math.prod(source.shape))
        if edit is None or not adapted:
            for piece in source.pieces():
                after = piece.to(dtype)
                tensor.see(after, after)
                writer.write(after)
        elif edit.replacement is not None and edit.is_replacement:
            for piece, trained in zip(source.pieces(), edit.replacement.pieces(), strict=True):
                after = trained.to(dtype)
                tensor.see(piece.to(dtype), after)
                writer.write(after)
        elif edit.low_rank is not None and edit.is_sum:
            self._write_sum(edit.low_rank, source, dtype, writer, tensor)
        else:
            before = source.read()
            merged, tensor.squared_norm = apply_edit(edit, before)
            after = merged.to(dtype).contiguous()
            tensor.see(before.to(dtype), after)
            writer.write(after)
        return tensor

    def _write_sum(
        self, update: LowRank, source: Tensor, dtype: torch.dtype, writer: TensorWriter, tensor: _Tensor
    ) -> None:
        """`weight + scaling * product`, some rows at a time, so that all but the product happens in the cache."""
        delta = update.product(self._scratch())
        tensor.squared_norm = update.squared_norm()
        columns = source.shape[1]
        rows = max(1, PIECE_ELEMENTS // columns)
        start = 0
        for piece in source.pieces(rows * columns):
            count = piece.numel() // columns
            total = delta[start : start + count].contiguous().view(-1).mul_(update.scaling)
            after = total.add_(piece).to(dtype)
            tensor.see(piece.to(dtype), after)
            writer.write(after)
            start += count
        if not tensor.squared_norm:
            tensor.changed = 0  # adding zero turns -0.0 into 0.0, which is no change

    def _scratch(self) -> torch.Tensor:
        if not hasattr(self._of_thread, "scratch"):
            self._of_thread.scratch = torch.empty(self._scratch_size)
        scratch: torch.Tensor = self._of_thread.scratch
        return scratch


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

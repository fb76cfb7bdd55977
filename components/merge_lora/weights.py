"""Reads and writes safetensors files one tensor at a time, so that a merge never holds a model.

Used by `merge` and `verify`. The format is 8 bytes of header length, a JSON header (name -> dtype, shape, offsets) and
the tensors' bytes, little-endian (https://huggingface.co/docs/safetensors). The safetensors library reads through a
memory map, whose pages count as resident memory, and writes a whole shard from memory; plain reads and writes keep the
peak at one tensor. Refuses pickled weights, files cut short and indexes that name missing files.
"""

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch

from components.errors import BadInputError

DTYPES: dict[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""Safetensors' names of what a merge reads; 8-bit floats are left out, since a merge wants 16 bits or more."""
NAMES = {dtype: name for name, dtype in DTYPES.items()}
PIECE_ELEMENTS = 1 << 17
"""What is worked on at a time: half a megabyte in 32 bit, so that it stays in a core's cache."""
INDEX = "model.safetensors.index.json"


@dataclass(frozen=True)
class Tensor:
    """Where one tensor lies.

    Attributes:
        name: its key, such as `model.norm.weight`.
        path: the file that holds it.
        dtype: its dtype in the file.
        shape: its sizes.
        start: offset of its first byte in the file.
        size: bytes.
    """

    name: str
    path: Path
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    size: int

    def read(self) -> torch.Tensor:
        """The whole tensor, in memory of its own."""
        data = bytearray(self.size)
        with self.path.open("rb", buffering=0) as file:
            file.seek(self.start)
            _fill(file, memoryview(data), self.path)
        if not data:
            return torch.empty(self.shape, dtype=self.dtype)
        return torch.frombuffer(data, dtype=self.dtype).reshape(self.shape)

    def pieces(self, elements: int = PIECE_ELEMENTS) -> Iterator[torch.Tensor]:
        """The tensor's elements in order, flat, some at a time; each piece is overwritten by the next.

        Args:
            elements: of a piece; the last one may have fewer.
        """
        size = elements * self.dtype.itemsize
        data = bytearray(min(self.size, size))
        with self.path.open("rb", buffering=0) as file:
            file.seek(self.start)
            left = self.size
            while left:
                view = memoryview(data)[: min(left, size)]
                _fill(file, view, self.path)
                left -= len(view)
                yield torch.frombuffer(view, dtype=self.dtype)


def _fill(file: Any, view: memoryview, path: Path) -> None:
    while view:
        count = file.readinto(view)
        if not count:
            raise BadInputError(f"{path} ends before its last tensor does; fetch it again")
        view = view[count:]


def read_header(path: Path) -> dict[str, Tensor]:
    """What a safetensors file holds, in the order of its bytes.

    Args:
        path: the file.

    Raises:
        BadInputError: when it is no safetensors file, is cut short or holds a dtype that can't be merged.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= size - 8:
            raise BadInputError(f"{path} is not a complete safetensors file; fetch or write it again")
        try:
            header = json.loads(file.read(length))
        except ValueError as error:
            raise BadInputError(f"the header of {path} is not readable ({error}); fetch or write it again") from None
    header.pop("__metadata__", None)
    tensors = []
    for name, entry in header.items():
        if entry["dtype"] not in DTYPES:
            raise BadInputError(
                f"{path}: {name} is stored as {entry['dtype']}; a merge needs weights of 16 or 32 bits, "
                "so import the unquantised model"
            )
        start, end = entry["data_offsets"]
        dtype = DTYPES[entry["dtype"]]
        shape = tuple(entry["shape"])
        if end - start != math.prod(shape) * dtype.itemsize or 8 + length + end > size:
            raise BadInputError(f"{path} is cut short or damaged at {name}; fetch or write it again")
        tensors.append(Tensor(name, path, dtype, shape, 8 + length + start, end - start))
    return {tensor.name: tensor for tensor in sorted(tensors, key=lambda tensor: tensor.start)}


def read_checkpoint(directory: Path) -> dict[str, Tensor]:
    """All tensors of a model directory, file by file in the order of their bytes.

    Args:
        directory: holds `model.safetensors` or shards with `model.safetensors.index.json`.

    Raises:
        BadInputError: when there are no safetensors weights, or the index and the files disagree.
    """
    index = directory / INDEX
    if index.exists():
        weight_map: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        files = [directory / name for name in dict.fromkeys(sorted(weight_map.values()))]
    else:
        weight_map = {}
        files = [directory / "model.safetensors"]
    missing = [path.name for path in files if not path.exists()]
    if missing:
        found = sorted(
            path.name for path in directory.glob("*") if path.suffix in {".safetensors", ".bin", ".gguf", ".pt"}
        )
        raise BadInputError(
            f"{directory} has no {missing[0]} (found {', '.join(found) or 'no weights'}); "
            "only safetensors weights are merged: import the model again"
        )
    tensors: dict[str, Tensor] = {}
    for path in files:
        tensors.update(read_header(path))
    absent = sorted(set(weight_map) - set(tensors))
    if absent:
        raise BadInputError(f"{index} names {absent[0]}, which no file of {directory} holds; import the model again")
    return tensors


@dataclass(frozen=True)
class Planned:
    """A tensor to be written: its key, dtype and shape."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Bytes it takes."""
        return math.prod(self.shape) * self.dtype.itemsize


class CheckpointWriter:
    """Writes a planned list of tensors into shards, several at a time where threads do.

    Every tensor's place is known from the start: `begin(name)` gives a `TensorWriter` for it, in any order and from any
    thread. `close` writes the index. Use it as a context manager, so that files are closed whatever happens.
    """

    def __init__(self, directory: Path, plan: Sequence[Planned], max_shard_bytes: int) -> None:
        self._directory = directory
        self._shards = _split(plan, max_shard_bytes)
        count = len(self._shards)
        self.files = [
            "model.safetensors" if count == 1 else f"model-{number:05}-of-{count:05}.safetensors"
            for number in range(1, count + 1)
        ]
        self._places: dict[str, tuple[int, int, int]] = {}
        self._begun: list[TensorWriter] = []
        self._open: list[int] = []
        for shard, name in zip(self._shards, self.files, strict=True):
            header = _header(shard)
            # Kept open until the end: a handful of files, or some hundred for the largest models.
            descriptor = os.open(directory / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            self._open.append(descriptor)
            _write_at(descriptor, memoryview(header), 0)
            offset = len(header)
            for planned in shard:
                self._places[planned.name] = (descriptor, offset, planned.size)
                offset += planned.size

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        while self._open:
            os.close(self._open.pop())

    def begin(self, name: str) -> "TensorWriter":
        """The writer of one tensor.

        Args:
            name: its key.
        """
        writer = TensorWriter(*self._places.pop(name))
        self._begun.append(writer)
        return writer

    def close(self) -> None:
        """Check that everything planned was written, and write the index."""
        if self._places or any(writer.left for writer in self._begun):
            raise AssertionError("closed before the plan was written")
        if len(self.files) > 1:
            weight_map = {
                planned.name: name for name, plans in zip(self.files, self._shards, strict=True) for planned in plans
            }
            total = sum(planned.size for plans in self._shards for planned in plans)
            index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
            (self._directory / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


class TensorWriter:
    """Appends a tensor's elements at its place in a file."""

    def __init__(self, descriptor: int, offset: int, size: int) -> None:
        self._descriptor = descriptor
        self._offset = offset
        self.left = size

    def write(self, values: torch.Tensor) -> None:
        """Append elements.

        Args:
            values: contiguous, on the CPU, in the planned dtype.
        """
        if not values.numel():
            return
        data = memoryview(values.reshape(-1).view(torch.uint8).numpy())
        if len(data) > self.left:
            raise AssertionError(f"{len(data)} bytes written where {self.left} were planned")
        _write_at(self._descriptor, data, self._offset)
        self._offset += len(data)
        self.left -= len(data)


def _write_at(descriptor: int, data: memoryview, offset: int) -> None:
    while data:
        count = os.pwrite(descriptor, data, offset)
        data, offset = data[count:], offset + count


def _split(plan: Sequence[Planned], max_bytes: int) -> list[list[Planned]]:
    shards: list[list[Planned]] = [[]]
    filled = 0
    for planned in plan:
        if shards[-1] and filled + planned.size > max_bytes:
            shards.append([])
            filled = 0
        shards[-1].append(planned)
        filled += planned.size
    # Tensors lie in the order of falling item size, so that each stays aligned.
    return [sorted(shard, key=lambda planned: -planned.dtype.itemsize) for shard in shards]


def _header(plans: Sequence[Planned]) -> bytes:
    entries: dict[str, Mapping[str, Any]] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for planned in plans:
        entries[planned.name] = {
            "dtype": NAMES[planned.dtype],
            "shape": list(planned.shape),
            "data_offsets": [offset, offset + planned.size],
        }
        offset += planned.size
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text

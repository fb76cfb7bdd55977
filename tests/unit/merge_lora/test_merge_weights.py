"""Safetensors files read and written piece by piece, against the safetensors library."""

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from components.errors import BadInputError
from components.merge_lora.weights import (
    PIECE_ELEMENTS,
    CheckpointWriter,
    Planned,
    read_checkpoint,
    read_header,
)


def sample() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {
        "a.weight": torch.randn(7, 5),
        "b.weight": torch.randn(3, 4).bfloat16(),
        "c.weight": torch.randn(9).half(),
        "d.count": torch.arange(5),
        "e.flag": torch.tensor([True, False, True]),
        "f.empty": torch.zeros(0, 3),
        "g.scalar": torch.tensor(2.5),
        "h.big": torch.randn(PIECE_ELEMENTS + 3),
    }


def write(directory: Path, tensors: dict[str, torch.Tensor], limit: int) -> list[str]:
    plan = [Planned(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()]
    with CheckpointWriter(directory, plan, limit) as writer:
        for name in reversed(tensors):
            halves = tensors[name].reshape(-1).tensor_split(2)
            tensor_writer = writer.begin(name)
            for half in halves:
                tensor_writer.write(half)
        writer.close()
        return writer.files


def test_library_reads_what_the_writer_wrote(tmp_path: Path) -> None:
    tensors = sample()
    assert write(tmp_path, tensors, 1 << 30) == ["model.safetensors"]
    loaded = load_file(tmp_path / "model.safetensors")
    assert set(loaded) == set(tensors)
    for name, tensor in tensors.items():
        assert loaded[name].dtype == tensor.dtype
        assert torch.equal(loaded[name], tensor)
    with safe_open(tmp_path / "model.safetensors", framework="pt") as file:
        assert file.metadata() == {"format": "pt"}


def test_reader_reads_what_the_library_wrote(tmp_path: Path) -> None:
    tensors = sample()
    save_file(tensors, tmp_path / "model.safetensors")
    found = read_checkpoint(tmp_path)
    assert set(found) == set(tensors)
    for name, tensor in tensors.items():
        assert torch.equal(found[name].read(), tensor)
        pieces = [piece.clone() for piece in found[name].pieces()]
        assert torch.equal(torch.cat(pieces) if pieces else torch.zeros(0), tensor.reshape(-1))


def test_shards_stay_below_the_limit_and_are_indexed(tmp_path: Path) -> None:
    tensors = {f"layer.{i}": torch.full((10,), float(i)) for i in range(9)}
    files = write(tmp_path, tensors, 100)
    assert len(files) == 5
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"].values()) == set(files)
    assert all(sum(t.numel() * 4 for t in load_file(tmp_path / name).values()) <= 100 for name in files)
    assert torch.equal(read_checkpoint(tmp_path)["layer.7"].read(), tensors["layer.7"])


def test_tensor_larger_than_a_shard_gets_a_file_of_its_own(tmp_path: Path) -> None:
    files = write(tmp_path, {"a": torch.zeros(4), "b": torch.zeros(100), "c": torch.zeros(4)}, 64)
    assert [list(load_file(tmp_path / name)) for name in files] == [["a"], ["b"], ["c"]]


@pytest.mark.parametrize("written", [[], ["a"], ["a", "b"]])
def test_writer_notices_what_was_forgotten(written: list[str], tmp_path: Path) -> None:
    plan = [Planned(name, torch.float32, (2,)) for name in "abc"]
    with CheckpointWriter(tmp_path, plan, 64) as writer:
        for name in written:
            writer.begin(name).write(torch.zeros(2))
        writer.begin("c").write(torch.zeros(1))
        with pytest.raises(AssertionError, match="before the plan was written"):
            writer.close()


def test_writer_refuses_more_than_was_planned(tmp_path: Path) -> None:
    with (
        CheckpointWriter(tmp_path, [Planned("a", torch.float32, (2,))], 64) as writer,
        pytest.raises(AssertionError, match="12 bytes written where 8 were planned"),
    ):
        writer.begin("a").write(torch.zeros(3))


def damage(path: Path, kind: str) -> None:
    data = path.read_bytes()
    if kind == "cut":
        path.write_bytes(data[:-4])
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "length":
        path.write_bytes((1 << 60).to_bytes(8, "little") + data[8:])
    elif kind == "header":
        path.write_bytes(data[:8] + b"x" + data[9:])


@pytest.mark.parametrize("kind", ["cut", "empty", "length", "header"])
def test_damaged_file_is_refused_by_name(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.zeros(4)}, path)
    damage(path, kind)
    with pytest.raises(BadInputError, match=r"model\.safetensors"):
        read_header(path)


def test_missing_shard_and_missing_tensor_are_refused(tmp_path: Path) -> None:
    write(tmp_path, {f"layer.{i}": torch.zeros(10) for i in range(3)}, 40)
    index = tmp_path / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"]["ghost"] = "model-00001-of-00003.safetensors"
    index.write_text(json.dumps(content))
    with pytest.raises(BadInputError, match="ghost"):
        read_checkpoint(tmp_path)
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(BadInputError, match="model-00002-of-00003"):
        read_checkpoint(tmp_path)


def test_pickled_weights_are_refused_with_what_was_found(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(BadInputError, match=r"found pytorch_model\.bin.*only safetensors"):
        read_checkpoint(tmp_path)


def test_eight_bit_weights_are_refused(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(4).to(torch.float8_e4m3fn)}, tmp_path / "model.safetensors")
    with pytest.raises(BadInputError, match="F8_E4M3.*unquantised"):
        read_checkpoint(tmp_path)

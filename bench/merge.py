"""LoRA merge side by side: components.merge_lora against peft's documented load, merge_and_unload, save_pretrained.

Run by `python -m bench.merge`, which prints JSON, or by a runner that calls `compare` and `grow`. Both sides are whole
processes on the same files (a Llama of random bfloat16 weights in several shards and a random adapter), in alternation:
wall seconds, CPU seconds and peak resident memory, medians; then every tensor of the two results is compared bit for
bit. Verification, which peft does not do, is left out of both. Needs about three times the model's size on disk.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

BUILD = """
import sys, torch
from transformers import LlamaConfig, LlamaForCausalLM
from peft import LoraConfig, get_peft_model
base, adapter, layers, hidden, rank, shard = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
torch.manual_seed(0)
torch.set_default_dtype(torch.bfloat16)
model = LlamaForCausalLM(LlamaConfig(
    vocab_size=32000, hidden_size=hidden, intermediate_size=11 * hidden // 4, num_hidden_layers=layers,
    num_attention_heads=hidden // 128, num_key_value_heads=max(1, hidden // 256), tie_word_embeddings=False))
model.save_pretrained(base, max_shard_size=shard)
torch.set_default_dtype(torch.float32)
get_peft_model(model, LoraConfig(
    r=rank, lora_alpha=2 * rank, target_modules="all-linear", init_lora_weights=False)).save_pretrained(adapter)
"""
"""Makes the model and the adapter."""

PEER = """
import sys
from peft import PeftModel
from transformers import AutoModelForCausalLM
base, adapter, out, shard = sys.argv[1:]
model = AutoModelForCausalLM.from_pretrained(base, dtype="auto")
model = PeftModel.from_pretrained(model, adapter)
model = model.merge_and_unload()
model.save_pretrained(out, max_shard_size=int(shard))
"""
"""peft's model merging guide: load the base, load the adapter, merge_and_unload, save."""

OURS = """
import sys
from pathlib import Path
from components.merge_lora.carrying import carry_files
from components.merge_lora.config import MergeConfig
from components.merge_lora.streaming import write_merged
from components.merge_lora.template import Opening
base, adapter, out = map(Path, sys.argv[1:4])
write_merged(base, adapter, MergeConfig(max_shard_gib=int(sys.argv[4]) / (1 << 30)), out)
carry_files(base, out, Opening())
"""
"""The step's own functions."""

COMPARE = """
import json, sys
from pathlib import Path
import torch
from components.merge_lora.weights import read_checkpoint
ours, peer = (read_checkpoint(Path(path)) for path in sys.argv[1:])
equal = sum(torch.equal(ours[name].read(), peer[name].read()) for name in ours if name in peer)
print(json.dumps({"equal": equal, "ours": len(ours), "peer": len(peer)}))
"""
"""Counts tensors that are equal bit for bit."""


def compare(*, rank: int = 16, layers: int = 24, hidden: int = 2048, shards: int = 5, pairs: int = 3) -> dict[str, Any]:
    """Merge the same adapter both ways, in alternation.

    Args:
        rank: of the adapter, on every linear layer.
        layers: of the model; 24 with hidden 2048 are 1.2 billion parameters.
        hidden: its width, a multiple of 256.
        shards: weight files of the base, at least.
        pairs: how often each side runs.

    Returns:
        Medians of both sides, their ratios, and how many tensors are equal.
    """
    with tempfile.TemporaryDirectory(prefix="bench-merge-") as folder:
        root = Path(folder)
        base, adapter = root / "base", root / "adapter"
        parameters = layers * hidden**2 * (3 + 33 / 4) + 2 * 32000 * hidden
        shard = int(2 * parameters / (shards - 0.5))
        _run(BUILD, base, adapter, layers, hidden, rank, shard)
        sides: dict[str, list[dict[str, float]]] = {"peer": [], "ours": []}
        for _ in range(pairs):
            for side, program in (("peer", PEER), ("ours", OURS)):
                shutil.rmtree(root / side, ignore_errors=True)
                sides[side].append(_run(program, base, adapter, root / side, shard))
        tensors = json.loads(_output(COMPARE, root / "ours", root / "peer"))
        size = sum(path.stat().st_size for path in base.glob("*.safetensors"))
        medians = {side: _medians(runs) for side, runs in sides.items()}
        return {
            "rank": rank,
            "model_gib": round(size / (1 << 30), 2),
            "shards": len(list(base.glob("*.safetensors"))),
            "pairs": pairs,
            **medians,
            "ratio": {key: round(medians["ours"][key] / medians["peer"][key], 3) for key in medians["peer"]},
            "tensors": tensors,
            "runs": sides,
        }


def grow(*, rank: int = 16, layers: tuple[int, ...] = (6, 12, 24), hidden: int = 2048) -> list[dict[str, Any]]:
    """The comparison once at each of several model sizes.

    Args:
        rank: of the adapter.
        layers: a point each.
        hidden: width of the model.
    """
    return [compare(rank=rank, layers=count, hidden=hidden, pairs=1) for count in layers]


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    packages = ("torch", "transformers", "peft", "safetensors")
    return {
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "packages": {name: version(name) for name in packages},
    }


def _run(program: str, *arguments: object) -> dict[str, float]:
    """Run a program as a process of its own: wall and CPU seconds, peak resident MiB."""
    started = time.perf_counter()
    process = subprocess.Popen(_command(program, *arguments), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    error = process.stderr.read() if process.stderr else b""
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(error.decode(errors="replace")[-2000:])
    return {
        "wall_s": round(wall, 3),
        "cpu_s": round(usage.ru_utime + usage.ru_stime, 3),
        "rss_mib": round(usage.ru_maxrss / 1024, 1),
    }


def _output(program: str, *arguments: object) -> str:
    return subprocess.run(_command(program, *arguments), check=True, capture_output=True, text=True).stdout


def _command(program: str, *arguments: object) -> list[str]:
    return [sys.executable, "-W", "ignore", "-c", program, *map(str, arguments)]


def _medians(runs: list[dict[str, float]]) -> Mapping[str, float]:
    return {key: statistics.median(run[key] for run in runs) for key in runs[0]}


def main() -> None:
    """Print the comparison for ranks 16 and 64 as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=24, help="layers of the model (24: 1.2 billion parameters)")
    parser.add_argument("--pairs", type=int, default=3, help="runs of each side")
    parser.add_argument("--ranks", type=int, nargs="+", default=[16, 64], help="adapter ranks")
    parser.add_argument("--grow", action="store_true", help="add one comparison at each of several model sizes")
    options = parser.parse_args()
    results = [compare(rank=rank, layers=options.layers, pairs=options.pairs) for rank in options.ranks]
    growth = grow() if options.grow else []
    print(json.dumps({"name": "merge", "machine": machine(), "results": results, "growth": growth}, indent=2))


if __name__ == "__main__":
    main()

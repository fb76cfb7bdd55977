"""The training step on inputs prepared before, guards, checkpoints, validation and MLflow on, with the loop timed.

python bench/ours/train.py INPUTS.json STORE WORK
"""
# ruff: noqa: E402 (imports are timed)

import time

started = time.perf_counter()

import json
import os
import sys
from pathlib import Path
from typing import Any

inputs_file, store_folder, work = (Path(argument) for argument in sys.argv[1:])
sections = json.loads(inputs_file.read_text(encoding="utf-8"))
threads = json.loads(sections["training"]).get("threads")
if threads:
    os.environ["OMP_NUM_THREADS"] = str(threads)

import trl

import components.train_grpo.stages
from components.storage.store import open_store
from components.train_grpo.record import read_record
from components.train_grpo.train import inputs_from_sections, train_grpo

assert components.train_grpo.stages
imported = time.perf_counter()
loop = {"train_s": 0.0, "train_cpu_s": 0.0}
train = trl.GRPOTrainer.train


def timed(self: Any, *arguments: Any, **settings: Any) -> Any:
    """TRL's, timed: what the callbacks do in it counts."""
    begun, cpu = time.perf_counter(), time.process_time()
    try:
        return train(self, *arguments, **settings)
    finally:
        loop["train_s"] += time.perf_counter() - begun
        loop["train_cpu_s"] += time.process_time() - cpu


trl.GRPOTrainer.train = timed
store = open_store(str(store_folder))
trained = train_grpo(inputs_from_sections(**sections), store, work=work)
record = read_record(store.fetch(trained.reference, work / "cache"))
rows = [row for row in record.history if "reward" in row]
assert not trained.reused
said = {
    "imports_s": imported - started,
    "train_s": round(loop["train_s"], 3),
    "train_cpu_s": round(loop["train_cpu_s"], 3),
    "steps": len(rows),
    "curve": [round(row["reward"], 4) for row in rows],
    "tokens": record.tokens,
}
for part in ("generation", "rewards", "update"):
    said[f"{part}_s"] = round(sum(row.get(f"time/{part}", 0.0) for row in rows), 3)
print(json.dumps(said))

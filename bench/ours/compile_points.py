"""Compiles the pipeline for one run, or for a sweep of N points, as `grpo compile` and `grpo sweep` do.

python bench/ours/compile_points.py CONFIG N FOLDER
"""
# ruff: noqa: E402 (imports are timed)

import time

started = time.perf_counter()

import json
import sys
from pathlib import Path

from pipeline.cluster.cluster_graph import compile_for_cluster, compile_sweep_for_cluster
from pipeline.config import load_config
from pipeline.planning.sweep import make_sweep

imported = time.perf_counter()

path, count, folder = Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
if count == 1:
    compile_for_cluster(load_config(path), folder / "run.yaml")
else:
    rates = ",".join(f"{(number + 1) * 1e-5:.1e}" for number in range(count // 2))
    sweep = make_sweep(path, [], [f"training.learning_rate={rates}", "run.seed=1,2"], parallel=2)
    compile_sweep_for_cluster(sweep, folder / "sweep.yaml")
seconds = time.perf_counter() - imported
print(json.dumps({"imports_s": round(imported - started, 3), "compile_s": round(seconds, 3)}))

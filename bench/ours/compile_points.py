"""Compiles the pipeline for one run, or for a sweep of N points, as `grpo compile` and `grpo sweep` do.

python bench/ours/compile_points.py CONFIG N FOLDER
"""
# ruff: noqa: E402 (imports are timed)

import time

started = time.perf_counter()

import json
import sys
from pathlib import Path

from pipeline.arguments import pipeline_arguments
from pipeline.config import load_config
from pipeline.fingerprint import files_fingerprint
from pipeline.graph import build_pipeline, compile_pipeline
from pipeline.planning.sweep import make_sweep, own_rewards, sweep_arguments
from pipeline.planning.sweep_graph import build_sweep

imported = time.perf_counter()

MOST = 32
"""Points of one sweep; `grpo sweep` refuses more than fit into one pipeline parameter, and says to split the grid."""

path, count, folder = Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
config = load_config(path)
inputs = {
    "model_inputs": files_fingerprint(config.model.local_files()),
    "data_inputs": files_fingerprint(config.data.local_files()),
}
if count == 1:
    compile_pipeline(build_pipeline(config.resources), pipeline_arguments(config, **inputs), folder / "run.yaml")
else:
    rates = [f"{(number + 1) * 1e-5:.1e}" for number in range(count // 2)]
    for start in range(0, len(rates), MOST // 2):
        grid = [f"training.learning_rate={','.join(rates[start : start + MOST // 2])}", "run.seed=1,2"]
        sweep = make_sweep(path, [], grid, parallel=2)
        arguments = sweep_arguments(config, sweep.points, **inputs)
        pipeline = build_sweep(config.resources, parallel=2, own_rewards=own_rewards(sweep.points))
        compile_pipeline(pipeline, arguments, folder / f"sweep-{start}.yaml")
seconds = time.perf_counter() - imported
print(json.dumps({"imports_s": round(imported - started, 3), "compile_s": round(seconds, 3)}))

"""Compiles the pipeline for N points of a sweep: the config read with each point's values, arguments, one YAML each.

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

imported = time.perf_counter()

config, points, folder = Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
for point in range(points):
    loaded = load_config(config, [f"training.learning_rate={1e-5 * (point + 1)}", f"run.seed={point}"])
    arguments = pipeline_arguments(
        loaded,
        model_inputs=files_fingerprint(loaded.model.local_files()),
        data_inputs=files_fingerprint(loaded.data.local_files()),
    )
    compile_pipeline(build_pipeline(loaded.resources), arguments, folder / f"{point}.yaml")
seconds = time.perf_counter() - imported
print(json.dumps({"imports_s": imported - started, "compile_s": seconds}))

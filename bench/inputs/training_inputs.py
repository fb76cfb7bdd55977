"""Imports the quickstart's model and data into a store and writes the training step's arguments.

python bench/inputs/training_inputs.py FOLDER STEPS [MODEL_FOLDER [section.key=value ...]]
"""

import json
import sys
from pathlib import Path

from components.contract import build_contract
from components.import_model.import_model import import_model
from components.prepare_dataset.prepare_dataset import prepare_dataset
from components.storage.store import open_store
from pipeline.arguments import pipeline_arguments
from pipeline.config import load_config

folder, steps, *rest = sys.argv[1:]
root = Path(folder)
overrides = [
    f"training.max_steps={steps}", f"store.uri={root / 'store'}", f"tracking.uri=sqlite:///{root / 'mlflow.db'}",
    *rest[1:],
]  # fmt: skip
if rest:
    overrides.append(f"model.source={rest[0]}")
config = load_config(Path(__file__).parent.parent.parent / "configs" / "quickstart.yaml", overrides)
store = open_store(config.store)
base = import_model(config.model, store, work=root / "work").reference
dataset = prepare_dataset(
    config.data, build_contract(config.contract), store.fetch(base, root / "work" / "cache"), store, work=root / "work"
).dataset
names = ("run", "model", "contract", "rewards", "training", "lora", "stages", "tracking")
arguments = pipeline_arguments(config, model_inputs="", data_inputs="")
sections = {name: arguments[name] for name in names} | {"base": str(base), "dataset": str(dataset), "code": "bench"}
(root / "inputs.json").write_text(json.dumps(sections), encoding="utf-8")

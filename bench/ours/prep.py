"""The prepare step: the same prompts and token counts, and all it checks besides (gold, repeats, leaks, splits).

python bench/ours/prep.py ROWS.jsonl MODEL STORE
"""

import sys
from pathlib import Path

from components.contract import default_contract
from components.prepare_dataset.config import DataConfig
from components.prepare_dataset.prepare_dataset import prepare_dataset
from components.storage.store import open_store

source, model, folder = sys.argv[1:]
data = DataConfig.model_validate({"train": source, "validation_rows": 200, "holdout_rows": 200})
prepare_dataset(data, default_contract(), Path(model), open_store(folder), work=Path(folder) / "work")

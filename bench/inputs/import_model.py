"""Brings the GGUF file in a folder into a store there, with the pipeline's import step. python ... FOLDER"""

import json
import sys
from pathlib import Path

from components.import_model.config import ModelConfig
from components.import_model.import_model import import_model
from components.storage.store import open_store

folder = Path(sys.argv[1])
(source,) = folder.glob("*.gguf")
store = open_store(str(folder / "store"))
imported = import_model(ModelConfig(source=str(source)), store, work=folder / "work")
print(json.dumps({"folder": str(store.fetch(imported.reference, folder / "cache"))}))

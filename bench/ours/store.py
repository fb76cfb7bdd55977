"""The artifact store: hashes every file, records a manifest, verifies what comes down; the peers do neither.

python bench/ours/store.py up|down FOLDER PREFIX
"""

import sys
from pathlib import Path

from components.storage.store import fetch, open_store

direction, folder, prefix = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
store = open_store(f"s3://artifacts/{prefix}")
if direction == "up":
    store.put(folder, "data", provenance={})
else:
    reference = store.find("data")
    assert reference is not None
    fetch(reference, folder)

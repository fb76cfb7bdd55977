"""Counts tensors of two checkpoints that are equal bit for bit. python ... FIRST SECOND"""

import json
import sys
from pathlib import Path

import torch

from components.merge_lora.weights import read_checkpoint

first, second = (read_checkpoint(Path(path)) for path in sys.argv[1:])
equal = sum(torch.equal(first[name].read(), second[name].read()) for name in first if name in second)
print(json.dumps({"equal": equal, "ours": len(first), "peer": len(second)}))

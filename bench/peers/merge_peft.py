"""peft's model merging guide: load the base, load the adapter, merge_and_unload, save.

python bench/peers/merge_peft.py BASE ADAPTER OUT SHARD_BYTES
"""

import sys

from peft import PeftModel
from transformers import AutoModelForCausalLM

base, adapter, out, shard = sys.argv[1:]
model = AutoModelForCausalLM.from_pretrained(base, dtype="auto")
model = PeftModel.from_pretrained(model, adapter)
model = model.merge_and_unload()
model.save_pretrained(out, max_shard_size=int(shard))

"""The merge step's own functions, without its verification (which the peer does not do).

python bench/ours/merge.py BASE ADAPTER OUT SHARD_BYTES
"""

import sys
from pathlib import Path

from components.merge_lora.carrying import carry_files
from components.merge_lora.config import MergeConfig
from components.merge_lora.streaming import write_merged
from components.merge_lora.template import Opening

base, adapter, out = map(Path, sys.argv[1:4])
write_merged(base, adapter, MergeConfig(max_shard_gib=int(sys.argv[4]) / (1 << 30)), out)
carry_files(base, out, Opening())

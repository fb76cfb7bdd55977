"""The evaluation's generator on the same prompts.

python bench/ours/evaluate.py MODEL PROMPTS.json BATCH|auto TOKENS DTYPE OUT.json [ENGINE]
"""
# ruff: noqa: E402 (imports are timed)

import time

started = time.perf_counter()

import json
import sys
from pathlib import Path

from components.generation import Sampling, open_generator

model_folder, prompts_file, batch, tokens, dtype, out = sys.argv[1:7]
engine = sys.argv[7] if len(sys.argv) > 7 else "transformers"
prompts = json.loads(Path(prompts_file).read_text(encoding="utf-8"))
if engine == "transformers":
    import transformers

    assert transformers.GenerationMixin  # what the engine imports when it is opened
imported = time.perf_counter()

with open_generator(
    model_folder, engine=engine, dtype=dtype, batch_size=None if batch == "auto" else int(batch)
) as generator:
    loaded = time.perf_counter()
    answers = generator.generate(prompts, Sampling(max_new_tokens=int(tokens)))
    seconds = time.perf_counter() - loaded
count = sum(answer[0].tokens for answer in answers)
Path(out).write_text(json.dumps([answer[0].text for answer in answers]), encoding="utf-8")
print(
    json.dumps(
        {
            "imports_s": imported - started,
            "load_s": loaded - imported,
            "generate_s": seconds,
            "tokens": count,
            "tokens_per_s": round(count / seconds, 1),
        }
    )
)

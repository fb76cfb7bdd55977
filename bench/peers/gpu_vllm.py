"""vLLM's own offline generation, greedy. python bench/peers/gpu_vllm.py MODEL PROMPTS.json TOKENS OUT.json"""

import json
import sys
import time
from pathlib import Path

from vllm import LLM, SamplingParams

model, prompts_file, tokens, out = sys.argv[1:]
prompts = json.loads(Path(prompts_file).read_text())
llm = LLM(model=model, dtype="bfloat16", max_model_len=2048)
begun = time.perf_counter()
answers = llm.generate(prompts, SamplingParams(temperature=0.0, max_tokens=int(tokens)))
seconds = time.perf_counter() - begun
count = sum(len(answer.outputs[0].token_ids) for answer in answers)
Path(out).write_text(json.dumps([answer.outputs[0].text for answer in answers]))
print(json.dumps({"generate_s": seconds, "tokens": count, "tokens_per_s": round(count / seconds, 1)}))

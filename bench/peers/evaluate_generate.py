"""Hugging Face generate over prompts in file order, in batches, greedy: the way its documentation pads a batch.

python bench/peers/evaluate_generate.py MODEL PROMPTS.json BATCH TOKENS DTYPE OUT.json
"""
# ruff: noqa: E402 (imports are timed)

import time

started = time.perf_counter()

import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

imported = time.perf_counter()

model_folder, prompts_file, batch, tokens, dtype, out = sys.argv[1:]
prompts = json.loads(Path(prompts_file).read_text())
device = "cuda" if torch.cuda.is_available() else "cpu"
tokenizer = AutoTokenizer.from_pretrained(model_folder, padding_side="left")
model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=getattr(torch, dtype)).to(device).eval()
loaded = time.perf_counter()

texts, count = [], 0
with torch.inference_mode():
    for start in range(0, len(prompts), int(batch)):
        inputs = tokenizer(
            prompts[start : start + int(batch)], return_tensors="pt", padding=True, add_special_tokens=False
        ).to(device)
        output = model.generate(
            **inputs, max_new_tokens=int(tokens), do_sample=False, pad_token_id=tokenizer.pad_token_id
        )
        for row in output[:, inputs["input_ids"].shape[1] :].tolist():
            end = row.index(tokenizer.eos_token_id) + 1 if tokenizer.eos_token_id in row else len(row)
            count += end
            texts.append(tokenizer.decode(row[:end], skip_special_tokens=True))
seconds = time.perf_counter() - loaded
Path(out).write_text(json.dumps(texts))
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

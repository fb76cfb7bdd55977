"""The library's correctness reward on N completions, as the reward worker calls it: one call a batch.

python bench/ours/reward.py N [--latex SHARE] [--out FILE]
"""
# ruff: noqa: E402 (imports are timed)

import time

started = time.perf_counter()

import argparse
import json
from pathlib import Path

from components.contract import build_contract
from components.contract.config import ContractConfig
from components.rewards.build import library_reward

imported = time.perf_counter()

from bench.completions import make

parser = argparse.ArgumentParser()
parser.add_argument("count", type=int)
parser.add_argument("--latex", type=float, default=0.0)
parser.add_argument("--out", type=Path)
options = parser.parse_args()

rows = make(options.count, options.latex)
completions = [[{"role": "assistant", "content": row.text}] for row in rows]
contract = build_contract(ContractConfig.model_validate({"answer": "auto" if options.latex else "number"}))
reward = library_reward("correctness", contract).function

begun, cpu = time.perf_counter(), time.process_time()
verdicts = reward(None, completions, answer=[row.gold for row in rows])
seconds, cpu = time.perf_counter() - begun, time.process_time() - cpu

if options.out:
    truth = [row.right for row in rows]
    options.out.write_text(json.dumps({"verdicts": verdicts, "forms": [row.form for row in rows], "truth": truth}))
print(
    json.dumps(
        {
            "imports_s": round(imported - started, 3),
            "score_s": round(seconds, 4),
            "completions_per_s": round(options.count / seconds, 1),
            "completions_per_cpu_s": round(options.count / cpu, 1),
        }
    )
)

"""TRL's accuracy_reward on N completions, as its documentation calls it.

Gold expressions are given to it between dollar signs: bare, it reads few of them and skips those rows.

python bench/peers/reward_math_verify.py N [--latex SHARE] [--out FILE]
"""
# ruff: noqa: E402 (imports are timed)

import time

started = time.perf_counter()

import argparse
import json
from pathlib import Path

from trl.rewards import accuracy_reward

imported = time.perf_counter()

from bench.completions import make

parser = argparse.ArgumentParser()
parser.add_argument("count", type=int)
parser.add_argument("--latex", type=float, default=0.0)
parser.add_argument("--out", type=Path)
options = parser.parse_args()

rows = make(options.count, options.latex)
completions = [[{"role": "assistant", "content": row.text}] for row in rows]
solution = [f"${row.gold}$" if row.form == "latex" else row.gold for row in rows]

begun, cpu = time.perf_counter(), time.process_time()
verdicts = accuracy_reward(completions, solution=solution)
seconds, cpu = time.perf_counter() - begun, time.process_time() - cpu

if options.out:
    options.out.write_text(json.dumps({"verdicts": verdicts}))
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

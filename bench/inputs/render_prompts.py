"""Writes GSM8K questions as prompts, through the default contract and a model's chat template.

python bench/inputs/render_prompts.py MODEL COUNT OUT.json
"""

import json
import sys
from pathlib import Path

from components.contract import default_contract
from components.contract.tokenizer import load_tokenizer

model, count, out = sys.argv[1:]
contract = default_contract()
tokenizer = load_tokenizer(Path(model), contract)
lines = (Path(__file__).parent.parent / "data" / "gsm8k-256.jsonl").read_text(encoding="utf-8").splitlines()
questions = [json.loads(line)["question"] for line in lines][: int(count)]
prompts = [contract.render(tokenizer, {"prompt": contract.messages(question)}) for question in questions]
Path(out).write_text(json.dumps(prompts), encoding="utf-8")

"""datasets.map with a plain function per row, as its documentation shows it: chat prompts with their length in tokens.

python bench/peers/prep_map.py ROWS.jsonl MODEL OUT.parquet SYSTEM_PROMPT
"""

import sys
import tempfile
from typing import Any

from datasets import load_dataset
from transformers import AutoTokenizer

source, model, out, system_prompt = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(model)


def prepare(row: dict[str, Any]) -> dict[str, Any]:
    """The prompt of one row, and its length."""
    messages = [{"role": "system", "content": system_prompt}, {"role": "user", "content": row["question"]}]
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    return {"prompt": messages, "prompt_tokens": len(ids)}


with tempfile.TemporaryDirectory() as cache:
    rows = load_dataset("json", data_files=source, split="train", cache_dir=cache).map(prepare)
    rows = rows.filter(lambda row: row["prompt_tokens"] <= 512)
    rows.to_parquet(out)

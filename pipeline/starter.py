"""`grpo init DIR`: a config, a reward file and a data sample that run as they are and are meant to be changed."""

import os
import random
from pathlib import Path

from components.errors import BadInputError

TINY_MODEL = Path(__file__).parent.parent / "configs" / "quickstart" / "model"

CONFIG = """\
# A run of the GRPO pipeline. `grpo validate run.yaml` checks it, `grpo rewards test run.yaml` tests the rewards,
# `grpo run run.yaml` runs it. Every key: docs/reference/config.md, or `grpo schema` for your editor.
run:
  name: {name}
  seed: 42

model:
  source: {model}   # {model_comment}

data:
  train: data.jsonl          # fields question and answer; also .csv, .parquet, a folder, s3://, {{hub: ...}}
  holdout_rows: 100          # rows only the final evaluation sees; or name a file of your own: holdout: test.jsonl
  validation_rows: 20

contract:                    # <reasoning>...</reasoning><answer>...</answer>, answers are numbers
  system_prompt: "Reply as {{format}}"

rewards:
  correctness: 2.0           # what is right weighs most
  strict_format: 1.0
  brevity: {{use: rewards.py:brevity, weight: 0.2, aspect: length}}   # your own

training:
  preset: cpu-smoke          # memory-optimised or high-throughput on a GPU
  max_steps: 20
  threads: 1

evaluation:
  max_new_tokens: 48
"""

REWARD = '''\
"""Rewards of your own. A reward gets the prompts, the completions (chat messages) and any data column by its name, and
returns one number a completion, or None where it does not apply.
"""


def brevity(completions, **columns):
    """1 for a completion of up to 60 characters, less for longer ones, 0 from 240 on."""
    scores = []
    for completion in completions:
        length = len(completion[-1]["content"])
        scores.append(max(0.0, min(1.0, (240 - length) / 180)))
    return scores
'''


def write_starter(folder: Path) -> list[Path]:
    """Write the starter files.

    Args:
        folder: a new or empty folder.

    Returns:
        The files written.

    Raises:
        BadInputError: when the folder holds something already.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadInputError(f"{folder} is not an empty folder; name a new one, nothing is overwritten")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInputError(f"{folder} cannot be made ({error.strerror}); name another place") from error
    model, comment = "Qwen/Qwen2.5-0.5B-Instruct", "a model of the hub, a folder, an s3:// URI or a .gguf file"
    if (TINY_MODEL / "config.json").exists():
        model = os.path.relpath(TINY_MODEL, folder.absolute())
        comment = "the tiny demonstration model; put a hub id, a folder, an s3:// URI or a .gguf file here"
    name = folder.absolute().name
    safe = "".join(letter if letter.isascii() and (letter.isalnum() or letter in "._-") else "-" for letter in name)
    files = {
        "run.yaml": CONFIG.format(name=safe.strip("._-") or "run", model=model, model_comment=comment),
        "rewards.py": REWARD,
        "data.jsonl": _sample(),
    }
    for file, text in files.items():
        (folder / file).write_text(text, encoding="utf-8")
    return [folder / file for file in files]


def _sample() -> str:
    """Six hundred small word problems, the same each time."""
    source = random.Random(0)  # noqa: S311 (a data sample, nothing secret)
    pairs = source.sample([(a, b) for a in range(10, 60) for b in range(2, 40)], 600)
    things = ("apples", "books", "coins", "stamps")
    rows = []
    for index, (a, b) in enumerate(pairs):
        thing = things[index % len(things)]
        question = f"Ann has {a} {thing} and gets {b} more. How many {thing} does Ann have now?"
        rows.append(f'{{"question": "{question}", "answer": "{a + b}"}}\n')
    return "".join(rows)

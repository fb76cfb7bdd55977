"""Figures of an evaluation from its samples, each share with its 95 % interval.

Called by evaluate_holdout. One completion a prompt: Wilson's score interval (Wilson 1927, through scipy). Several: the
percentile bootstrap over prompts (Efron 1979), since completions of one prompt are not independent. Where every prompt
agrees and the bootstrap would have no width, Wilson's interval on the number of prompts stands in.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from components.contract import Contract

CONFIDENCE = 0.95
RESAMPLES = 2000

Metrics = dict[str, dict[str, float | int | None]]


@dataclass(frozen=True)
class Figure:
    """One metric.

    Attributes:
        value: estimate.
        low: lower end of its 95 % interval; None where it has none.
        high: upper end.
        n: completions (or prompts, for pass@k and majority@k) it is taken over.
    """

    value: float
    low: float | None
    high: float | None
    n: int


def measure(
    samples: Sequence[Mapping[str, Any]], contract: Contract, *, seed: int, slices: str | None = None
) -> Metrics:
    """All metrics of one set and one decoding.

    Args:
        samples: of one set and decoding; completions of one prompt lie side by side.
        contract: compares answers for majority@k.
        seed: of the bootstrap.
        slices: column to report the main metrics by.

    Returns:
        Name -> value, low, high, n. Names hold only what MLflow allows.
    """
    figures = _main(samples, seed) | _lengths(samples) | _reasons(samples, seed) | _rewards(samples, seed)
    figures |= _several(samples, contract, seed)
    if slices is not None:
        groups: dict[str, list[Mapping[str, Any]]] = {}
        for sample in samples:
            groups.setdefault(safe_name(str(sample.get(slices))), []).append(sample)
        for name, members in sorted(groups.items()):
            figures |= {f"slice/{safe_name(slices)}/{name}/{key}": value for key, value in _main(members, seed).items()}
    return {name: asdict(figure) for name, figure in figures.items()}


def safe_name(text: str) -> str:
    """A text as part of a metric's name (MLflow allows letters, digits, _ - . and space)."""
    return re.sub(r"[^\w. -]", "_", text, flags=re.ASCII).strip() or "_"


def share(values: Sequence[bool], prompts: Sequence[Any], seed: int) -> Figure:
    """A share of completions with its interval.

    Args:
        values: one a completion.
        prompts: which prompt each belongs to, equal ones side by side.
        seed: of the bootstrap.
    """
    by_prompt = _by_prompt(np.asarray(values, dtype=float), prompts)
    count = len(by_prompt)
    total = float(np.mean(values))
    if count == len(values):
        low, high = wilson(round(total * count), count)
    else:
        means = np.array([group.mean() for group in by_prompt])
        low, high = bootstrap_mean(means, seed)
        if means.min() == means.max() and means[0] in (0.0, 1.0):
            low, high = wilson(round(total * count), count)
    return Figure(total, low, high, len(values))


def wilson(successes: int, n: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Wilson's score interval of a proportion."""
    from scipy.stats import binomtest

    interval = binomtest(successes, n).proportion_ci(confidence, method="wilson")
    return float(interval.low), float(interval.high)


def bootstrap_mean(values: np.ndarray, seed: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Percentile bootstrap interval of a mean.

    Args:
        values: one a prompt, shape (prompts,).
        seed: of the resampling.
        confidence: coverage.
    """
    generator = np.random.default_rng(seed)
    size = len(values)
    # In blocks, so that a large holdout does not make one matrix of resamples x prompts.
    block = max(1, 2_000_000 // size)
    means = np.concatenate(
        [
            values[generator.integers(0, size, size=(min(block, RESAMPLES - start), size))].mean(axis=1)
            for start in range(0, RESAMPLES, block)
        ]
    )
    low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def pass_at_k(n: int, correct: int, k: int) -> float:
    """Unbiased estimate of the chance that one of k completions is right (Chen et al. 2021, equation 1).

    Args:
        n: completions drawn.
        correct: how many of them are right.
        k: at most n.
    """
    return 1.0 - math.comb(n - correct, k) / math.comb(n, k)


def majority(answers: Sequence[str | None], contract: Contract) -> str | None:
    """The answer most completions give; the earliest of equals. None when none gives one.

    Args:
        answers: as read; None does not vote.
        contract: says which answers are the same.
    """
    groups: list[tuple[str, int]] = []
    for answer in answers:
        if answer is None:
            continue
        for place, (leader, votes) in enumerate(groups):
            if answer == leader or contract.equal(answer, leader):
                groups[place] = (leader, votes + 1)
                break
        else:
            groups.append((answer, 1))
    return max(groups, key=lambda group: group[1])[0] if groups else None


def _main(samples: Sequence[Mapping[str, Any]], seed: int) -> dict[str, Figure]:
    prompts = [sample["id"] for sample in samples]
    names = {
        "format_compliance": "strict",
        "format_compliance_lenient": "lenient",
        "accuracy_strict": "correct_strict",
        "accuracy_lenient": "correct_lenient",
        "truncation_rate": "truncated",
    }
    return {name: share([bool(s[column]) for s in samples], prompts, seed) for name, column in names.items()}


def _lengths(samples: Sequence[Mapping[str, Any]]) -> dict[str, Figure]:
    tokens = np.array([sample["tokens"] for sample in samples], dtype=float)
    values = {"mean": tokens.mean(), **{f"p{level}": np.percentile(tokens, level) for level in (50, 90, 99)}}
    return {
        f"completion_tokens/{name}": Figure(float(value), None, None, len(tokens)) for name, value in values.items()
    }


def _reasons(samples: Sequence[Mapping[str, Any]], seed: int) -> dict[str, Figure]:
    prompts = [sample["id"] for sample in samples]
    found = sorted({reason for sample in samples for reason in sample["reasons"]})
    return {f"failure/{name}": share([name in s["reasons"] for s in samples], prompts, seed) for name in found}


def _rewards(samples: Sequence[Mapping[str, Any]], seed: int) -> dict[str, Figure]:
    figures = {}
    names = [name for name in samples[0] if name.startswith("rewards.")]
    for name in names:
        scored = [sample for sample in samples if sample[name] is not None]
        if not scored:
            continue
        values = np.array([sample[name] for sample in scored], dtype=float)
        means = np.array([group.mean() for group in _by_prompt(values, [sample["id"] for sample in scored])])
        low, high = bootstrap_mean(means, seed)
        figures["reward/" + name.removeprefix("rewards.")] = Figure(float(values.mean()), low, high, len(values))
    return figures


def _several(samples: Sequence[Mapping[str, Any]], contract: Contract, seed: int) -> dict[str, Figure]:
    groups: dict[Any, list[Mapping[str, Any]]] = {}
    for sample in samples:
        groups.setdefault(sample["id"], []).append(sample)
    n = min(len(group) for group in groups.values())
    if n < 2:
        return {}
    sizes = sorted({2**power for power in range(n.bit_length()) if 2**power <= n} | {n})
    figures = {}
    for kind in ("strict", "lenient"):
        correct = [sum(bool(sample[f"correct_{kind}"]) for sample in group) for group in groups.values()]
        for k in sizes:
            values = np.array(
                [pass_at_k(len(group), right, k) for group, right in zip(groups.values(), correct, strict=True)]
            )
            low, high = bootstrap_mean(values, seed)
            figures[f"pass_at_{k}_{kind}"] = Figure(float(values.mean()), low, high, len(values))
        votes = [
            contract.equal(majority([s[f"answer_read_{kind}"] for s in group], contract), str(group[0]["gold"]))
            for group in groups.values()
        ]
        figures[f"majority_at_{n}_{kind}"] = share(votes, range(len(votes)), seed)
    return figures


def _by_prompt(values: np.ndarray, prompts: Sequence[Any]) -> list[np.ndarray]:
    """Values split where the prompt changes."""
    cuts = [index for index in range(1, len(prompts)) if prompts[index] != prompts[index - 1]]
    return np.split(values, cuts)

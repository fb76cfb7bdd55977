"""The next token of each row of a batch: greedy, or sampled with random numbers that belong to the row.

Sampling inverts the cumulative distribution with one uniform number a token, drawn from a stream keyed by seed, prompt
and sample index: a completion does not change when its neighbours in the batch do.
"""

import hashlib

import numpy as np
import torch

from components.generation.interface import Sampling


def uniform_stream(seed: int, prompt_ids: list[int], occurrence: int, count: int) -> np.ndarray:
    """Random numbers for one completion.

    Args:
        seed: of the whole generation.
        prompt_ids: the prompt's tokens.
        occurrence: which completion of this very prompt it is, from 0.
        count: numbers wanted.

    Returns:
        float64 numbers in [0, 1), shape (count,).
    """
    digest = hashlib.sha256(f"{seed}/{occurrence}/{prompt_ids}".encode()).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest[:16], "little"))).random(count)


def penalise(logits: torch.Tensor, seen: torch.Tensor, penalty: float) -> torch.Tensor:
    """Scores with the repetition penalty of Keskar et al. 2019 (CTRL, section 4.1).

    Args:
        logits: (rows, vocabulary).
        seen: (rows, vocabulary) bool, tokens already in the row's prompt or completion.
        penalty: positive scores are divided by it, negative ones multiplied.
    """
    return torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)


def choose(logits: torch.Tensor, sampling: Sampling, uniforms: torch.Tensor | None) -> torch.Tensor:
    """One token a row.

    Args:
        logits: (rows, vocabulary) float32.
        sampling: resolved (no None in it).
        uniforms: (rows,) in [0, 1); not read when greedy.

    Returns:
        (rows,) token ids.
    """
    if sampling.temperature == 0:
        return logits.argmax(dim=-1)
    assert uniforms is not None
    scores = logits / sampling.temperature
    if sampling.top_k or sampling.top_p < 1:
        # Filters in the usual order (top_k, then top_p), on scores sorted once.
        scores, tokens = scores.sort(dim=-1, descending=True, stable=True)
        if sampling.top_k:
            scores, tokens = scores[:, : sampling.top_k], tokens[:, : sampling.top_k]
        weights = scores.softmax(dim=-1).double()
        before = weights.cumsum(dim=-1) - weights
        weights = weights.masked_fill(before >= sampling.top_p, 0.0)
        picked = _invert(weights, uniforms)
        return tokens.gather(1, picked[:, None])[:, 0]
    return _invert(scores.softmax(dim=-1).double(), uniforms)


def _invert(weights: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Index at which the cumulative weight first exceeds the uniform share of the total."""
    totals = weights.cumsum(dim=-1)
    whole = totals[:, -1:].contiguous()
    # Below the total even when rounding says otherwise: behind it there are only tokens without weight.
    targets = torch.minimum(uniforms.to(totals)[:, None] * whole, torch.nextafter(whole, torch.zeros_like(whole)))
    return torch.searchsorted(totals, targets, right=True)[:, 0]

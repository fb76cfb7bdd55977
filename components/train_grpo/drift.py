"""How far frozen base weights have moved: with vLLM, TRL merges the adapter into them and takes it out again each step.

Called by stages.py before and after the stages, on rank 0 and the others alike. In float32 nothing measurable remains;
in bfloat16 rounding adds up.
"""

from typing import Any

import torch


def fingerprint(policy: Any) -> dict[str, tuple[float, float]]:
    """Sum and norm of every frozen floating-point weight, in double precision.

    Args:
        policy: the model with its adapter.
    """
    return {
        name: (float(parameter.detach().double().sum()), float(parameter.detach().double().norm()))
        for name, parameter in policy.named_parameters()
        if not parameter.requires_grad and torch.is_floating_point(parameter)
    }


def drift(before: dict[str, tuple[float, float]], after: dict[str, tuple[float, float]]) -> float:
    """The largest change of a weight's sum or norm, relative to its norm.

    Args:
        before: from `fingerprint`.
        after: the same, later.

    Returns:
        0 when nothing moved. A lower bound: changes that cancel out in both do not show.
    """
    moves = [
        max(abs(after[name][0] - total), abs(after[name][1] - norm)) / norm
        for name, (total, norm) in before.items()
        if name in after and norm > 0
    ]
    return max(moves, default=0.0)

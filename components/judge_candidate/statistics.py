"""Intervals and tests for shares, and for the difference between two models on the same rows.

Called by judge_candidate, and by promotion when it compares a version with the champion. Pure functions; counts and
arrays may be numpy arrays of any (equal) shape, so that simulations run at once. No correction for looking at several
metrics: each interval stands for itself.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

RESAMPLES = 4000
MOST_ROWS = 10_000_000
"""Beyond this many rows a question counts as one that more rows would not decide."""

Number = Any
"""A float, or a numpy array of them."""


@dataclass(frozen=True)
class Interval:
    """An estimate with its interval.

    Attributes:
        value: the estimate.
        low: lower end.
        high: upper end.
    """

    value: float
    low: float
    high: float


def z_value(confidence: float) -> float:
    """Two-sided normal quantile: 1.96 for 0.95."""
    from scipy.stats import norm

    return float(norm.ppf((1 + confidence) / 2))


def wilson(successes: Number, n: Number, confidence: float = 0.95) -> tuple[Number, Number]:
    """Wilson's score interval for a proportion (Wilson 1927; Newcombe 1998a, method 3). Holds at 0 and at n.

    Args:
        successes: count, whole or not (a share of a larger sample).
        n: trials, above 0.
        confidence: two-sided coverage.

    Returns:
        Lower and upper end.
    """
    z = z_value(confidence)
    p = np.asarray(successes, dtype=float) / n
    centre = p + z * z / (2 * n)
    spread = z * np.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    low, high = (centre - spread) / (1 + z * z / n), (centre + spread) / (1 + z * z / n)
    # Rounding must not leave the ends of the scale: at 0 and n the bound is exact.
    return np.where(p == 0, 0.0, low)[()], np.where(p == 1, 1.0, high)[()]


def newcombe(
    both: Number, first: Number, second: Number, neither: Number, confidence: float = 0.95
) -> tuple[Number, Number]:
    """Interval for a difference of two proportions on the same rows: Newcombe 1998, method 10.

    Wilson's intervals of the two proportions are combined by square and add, with a continuity-corrected estimate of
    their correlation. (R. G. Newcombe, Improved confidence intervals for the difference between binomial proportions
    based on paired data, Statistics in Medicine 17, 2635-2650.) Unlike Wald's it has a width when nothing differs.

    Args:
        both: rows on which both succeed.
        first: rows on which only the first does.
        second: rows on which only the second does.
        neither: rows on which neither does.
        confidence: two-sided coverage.

    Returns:
        Lower and upper end of p(first) - p(second).
    """
    a, b, c, d = (np.asarray(count, dtype=float) for count in (both, first, second, neither))
    n = a + b + c + d
    p1, p2 = (a + b) / n, (a + c) / n
    low1, high1 = wilson(a + b, n, confidence)
    low2, high2 = wilson(a + c, n, confidence)
    product = (a + b) * (c + d) * (a + c) * (b + d)
    determinant = a * d - b * c
    corrected = np.where(determinant > n / 2, determinant - n / 2, np.where(determinant < 0, determinant, 0.0))
    phi = np.where(product > 0, corrected / np.sqrt(np.where(product > 0, product, 1.0)), 0.0)
    down = np.sqrt((p1 - low1) ** 2 - 2 * phi * (p1 - low1) * (high2 - p2) + (high2 - p2) ** 2)
    up = np.sqrt((high1 - p1) ** 2 - 2 * phi * (high1 - p1) * (p2 - low2) + (p2 - low2) ** 2)
    difference = p1 - p2
    return (difference - down)[()], (difference + up)[()]


def mcnemar_exact(first: int, second: int) -> float:
    """Two-sided p-value that neither model is right more often (McNemar's exact conditional test).

    Args:
        first: rows on which only the first is right.
        second: rows on which only the second is right.
    """
    from scipy.stats import binomtest

    return 1.0 if first + second == 0 else float(binomtest(first, first + second, 0.5).pvalue)


def bootstrap_mean(values: np.ndarray, confidence: float = 0.95, seed: int = 0) -> tuple[float, float]:
    """Percentile bootstrap interval of a mean over prompts (Efron 1979).

    Where all values are equal the bootstrap has no width and the true mean may still differ: then the interval allows
    for as many other prompts as Wilson's interval allows at none in n.

    Args:
        values: one a prompt, in [-1, 1]; the interval is not cut off at the ends of their scale.
        confidence: two-sided coverage.
        seed: of the resampling.
    """
    n = len(values)
    if np.ptp(values) == 0:
        slack = float(wilson(0, n, confidence)[1])
        return float(values[0]) - slack, float(values[0]) + slack
    generator = np.random.default_rng(seed)
    block = max(1, 2_000_000 // n)
    means = np.concatenate(
        [
            values[generator.integers(0, n, size=(min(block, RESAMPLES - start), n))].mean(axis=1)
            for start in range(0, RESAMPLES, block)
        ]
    )
    low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def rows_to_decide(rows: int, decided: Callable[[float], bool]) -> int | None:
    """How many rows would settle a gate if the shares stayed as they are.

    Args:
        rows: rows there are.
        decided: whether the gate is settled with this many times the rows.

    Returns:
        Rows in all (rounded up to two digits), or None when even ten million would not settle it.
    """
    low, high = 1.0, 2.0
    while not decided(high):
        low, high = high, high * 2
        if high * rows > MOST_ROWS:
            return None
    while high - low > 0.01 * low:
        middle = (low + high) / 2
        low, high = (low, middle) if decided(middle) else (middle, high)
    needed = int(np.ceil(high * rows))
    step = 10 ** max(0, len(str(needed)) - 2)
    return -(-needed // step) * step

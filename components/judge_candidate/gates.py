"""Holds the figures of a comparison against the gates; each gate answers with a status and one sentence.

Called by judge_candidate. A gate passes when its whole interval is on the good side of the bound, fails when the whole
interval is on the bad side, and is inconclusive between; then its sentence says how many rows would decide it.
"""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from components.judge_candidate.config import GatesConfig
from components.judge_candidate.pairs import Pairs
from components.judge_candidate.statistics import (
    Interval,
    bootstrap_mean,
    newcombe,
    rows_to_decide,
    wilson,
)


class Status(StrEnum):
    """Outcome of a gate, or of all."""

    PASS = "pass"  # noqa: S105 (a verdict)
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True)
class Gate:
    """One gate and what came of it.

    Attributes:
        name: its key in the `gates` section, or `no_leakage`.
        status: pass, fail or inconclusive.
        sentence: what was found, with the figures.
        value: the estimate; None where the gate counts.
        low: lower end of its interval.
        high: upper end.
        bound: what it was held against.
        rows_needed: rows that would decide it, where it is inconclusive and any number would.
    """

    name: str
    status: Status
    sentence: str
    value: float | None = None
    low: float | None = None
    high: float | None = None
    bound: float | None = None
    rows_needed: int | None = None


@dataclass(frozen=True)
class Difference:
    """A metric of both models on the same rows.

    Attributes:
        base: the base's share with its interval.
        candidate: the candidate's.
        difference: candidate minus base, paired.
        wins: rows the candidate has more right completions on.
        losses: rows the base has.
        ties: the others.
    """

    base: Interval
    candidate: Interval
    difference: Interval
    wins: int
    losses: int
    ties: int


def compare(pairs: Pairs, column: str, confidence: float) -> Difference:
    """Shares and their paired difference.

    Args:
        pairs: both models.
        column: a true/false column of the samples.
        confidence: two-sided coverage.
    """
    base, candidate = pairs.rates(column)
    wins, losses = int(np.sum(candidate > base)), int(np.sum(candidate < base))
    low, high = _difference(pairs, base, candidate, confidence)
    return Difference(
        _share(pairs, base, confidence),
        _share(pairs, candidate, confidence),
        Interval(float(candidate.mean() - base.mean()), low, high),
        wins,
        losses,
        len(base) - wins - losses,
    )


def apply_gates(pairs: Pairs, gates: GatesConfig, leaked: list[str]) -> list[Gate]:
    """All gates that are switched on, in the order of importance.

    Args:
        pairs: both models on the judged decoding.
        gates: the section.
        leaked: ids of holdout rows found in the training split.
    """
    results = [_leakage(leaked), _rows(len(pairs.ids), gates.min_rows)]
    if gates.min_format_compliance is not None:
        results.append(
            _share_gate(pairs, "strict", gates, "min_format_compliance", gates.min_format_compliance, at_least=True)
        )
    if gates.accuracy_margin is not None:
        results.append(_difference_gate(pairs, "correct_lenient", gates, "accuracy_margin", -gates.accuracy_margin))
    if gates.min_accuracy_gain is not None:
        results.append(_difference_gate(pairs, "correct_strict", gates, "min_accuracy_gain", gates.min_accuracy_gain))
    if gates.max_truncation is not None:
        results.append(_share_gate(pairs, "truncated", gates, "max_truncation", gates.max_truncation, at_least=False))
    return results


def overall(gates: list[Gate]) -> Status:
    """Fail when any gate fails, else inconclusive when any is, else pass."""
    for status in (Status.FAIL, Status.INCONCLUSIVE):
        if any(gate.status == status for gate in gates):
            return status
    return Status.PASS


def _leakage(leaked: list[str]) -> Gate:
    if leaked:
        sentence = f"{len(leaked)} holdout rows are in the training split (first: {leaked[0]}): prepare the data again."
        return Gate("no_leakage", Status.FAIL, sentence, value=float(len(leaked)), bound=0.0)
    return Gate("no_leakage", Status.PASS, "No holdout row is in the training split.", value=0.0, bound=0.0)


def _rows(rows: int, least: int) -> Gate:
    if rows >= least:
        return Gate(
            "min_rows",
            Status.PASS,
            f"{rows:,} rows were judged, at least {least:,} are asked for.",
            float(rows),
            bound=least,
        )
    sentence = f"Only {rows:,} rows were judged and {least:,} are asked for: evaluate on at least {least:,} rows."
    return Gate("min_rows", Status.INCONCLUSIVE, sentence, float(rows), bound=least, rows_needed=least)


def _share_gate(pairs: Pairs, column: str, gates: GatesConfig, name: str, bound: float, *, at_least: bool) -> Gate:
    """A share of the candidate's completions against a bound."""
    rates = pairs.rates(column)[1]
    interval = _share(pairs, rates, gates.confidence)
    good = interval.low >= bound if at_least else interval.high <= bound
    bad = interval.high < bound if at_least else interval.low > bound
    what = {"strict": "Strict format compliance", "truncated": "The share of truncated completions"}[column]
    found = f"{what} is {_percent(interval)}"
    asked = f"{'at least' if at_least else 'at most'} {bound:.1%}"
    if good:
        return Gate(name, Status.PASS, f"{found}; {asked} is asked for.", *_ends(interval), bound)
    if bad:
        return Gate(
            name,
            Status.FAIL,
            f"{found}, all of it {'below' if at_least else 'above'} the {bound:.1%} asked for.",
            *_ends(interval),
            bound,
        )

    def decided(times: float) -> bool:
        n = len(rates) * times
        low, high = wilson(interval.value * n, n, gates.confidence)
        return bool(high < bound or low >= bound) if at_least else bool(low > bound or high <= bound)

    needed = rows_to_decide(len(rates), decided)
    sentence = f"{found}, and {asked} is asked for: {_more(needed)}"
    return Gate(name, Status.INCONCLUSIVE, sentence, *_ends(interval), bound, needed)


def _difference_gate(pairs: Pairs, column: str, gates: GatesConfig, name: str, bound: float) -> Gate:
    """The paired difference to the base against a bound that it must exceed."""
    base, candidate = pairs.rates(column)
    low, high = _difference(pairs, base, candidate, gates.confidence)
    interval = Interval(float(candidate.mean() - base.mean()), low, high)
    what = {"correct_lenient": "Lenient accuracy", "correct_strict": "Strict accuracy"}[column]
    found = (
        f"{what} went from {base.mean():.1%} to {candidate.mean():.1%}, {_points(interval.value)} points "
        f"[{_points(low)}, {_points(high)}]"
    )
    asked = f"more than {_points(bound)} points"
    if low > bound:
        return Gate(name, Status.PASS, f"{found}; {asked} is asked for.", *_ends(interval), bound)
    if high <= bound:
        return Gate(name, Status.FAIL, f"{found}, and {asked} is asked for.", *_ends(interval), bound)

    def decided(times: float) -> bool:
        ends = _scaled_difference(pairs, base, candidate, times, gates.confidence)
        return bool(ends[0] > bound or ends[1] <= bound)

    needed = rows_to_decide(len(base), decided)
    sentence = f"{found}, and {asked} is asked for: {_more(needed)}"
    return Gate(name, Status.INCONCLUSIVE, sentence, *_ends(interval), bound, needed)


def _share(pairs: Pairs, rates: np.ndarray, confidence: float) -> Interval:
    """A share with Wilson's interval, or the bootstrap's where rows have several completions."""
    value = float(rates.mean())
    if pairs.single:
        low, high = wilson(rates.sum(), len(rates), confidence)
    else:
        low, high = bootstrap_mean(rates, confidence)
    return Interval(value, max(0.0, float(low)), min(1.0, float(high)))


def _difference(pairs: Pairs, base: np.ndarray, candidate: np.ndarray, confidence: float) -> tuple[float, float]:
    if not pairs.single:
        return bootstrap_mean(candidate - base, confidence)
    low, high = newcombe(*_table(base, candidate), confidence=confidence)
    return float(low), float(high)


def _scaled_difference(
    pairs: Pairs, base: np.ndarray, candidate: np.ndarray, times: float, confidence: float
) -> tuple[float, float]:
    """The interval that so many times the rows would give, all shares staying as they are."""
    if pairs.single:
        both, first, second, neither = _table(base, candidate)
        low, high = newcombe(both * times, first * times, second * times, neither * times, confidence)
        return float(low), float(high)
    low, high = _difference(pairs, base, candidate, confidence)
    centre = float(candidate.mean() - base.mean())
    return centre - (centre - low) / times**0.5, centre + (high - centre) / times**0.5


def _table(base: np.ndarray, candidate: np.ndarray) -> tuple[int, int, int, int]:
    """Rows both have, only the candidate, only the base, neither."""
    one, other = candidate > 0.5, base > 0.5
    return (
        int(np.sum(one & other)),
        int(np.sum(one & ~other)),
        int(np.sum(~one & other)),
        int(np.sum(~one & ~other)),
    )


def _more(needed: int | None) -> str:
    if needed is None:
        return "too close to the bound for more rows to decide."
    return f"about {needed:,} rows in all would decide it, should the shares stay as they are."


def _ends(interval: Interval) -> tuple[float, float, float]:
    return interval.value, interval.low, interval.high


def _percent(interval: Interval) -> str:
    return f"{interval.value:.1%} [{interval.low:.1%}, {interval.high:.1%}]"


def _points(share: float) -> str:
    return f"{share * 100:+.1f}"

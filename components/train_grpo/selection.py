"""Which step of a training goes on: the best of its checks on validation rows, or the last; and when to stop early.

Plain functions over the checks made so far. Called by callbacks.py while training and by stages.py at its end. The
holdout is never part of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

ACCURACY = "validation/accuracy_strict"
COMPLIANCE = "validation/format_compliance"


@dataclass(frozen=True)
class Check:
    """One check on validation rows.

    Attributes:
        step: optimizer steps of the stage done.
        metrics: values by name.
    """

    step: int
    metrics: Mapping[str, float]

    @property
    def score(self) -> tuple[float, float]:
        """What checks are compared by: accuracy in the format, then compliance."""
        return self.metrics.get(ACCURACY, 0.0), self.metrics.get(COMPLIANCE, 0.0)


def best_check(checks: Sequence[Check]) -> Check | None:
    """The best check; of equal ones the later, which has learned from more rows.

    Args:
        checks: in the order of their steps.
    """
    return max(checks, key=lambda check: (check.score, check.step), default=None)


def is_best(checks: Sequence[Check]) -> bool:
    """Whether the newest check is the best so far.

    Args:
        checks: in the order of their steps, at least one.
    """
    return best_check(checks) is checks[-1]


def stopped_improving(checks: Sequence[Check], patience: int) -> bool:
    """Whether so many checks in a row brought nothing better.

    Args:
        checks: in the order of their steps.
        patience: how many; 0 is never.
    """
    if patience == 0 or len(checks) <= patience:
        return False
    before = max(check.score for check in checks[:-patience])
    return all(check.score <= before for check in checks[-patience:])

"""Reward weights that move while training: in a straight line, or following each reward's success.

Plain arithmetic without torch; callbacks.py puts the weights on the trainer and the state into checkpoints, so that a
resumed run weighs as an undisturbed one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from components.errors import BadInputError
from components.train_grpo.config import AdaptiveWeights, TrainingConfig, WeightSchedule


def scheduled(schedule: WeightSchedule, step: int, steps: int) -> float:
    """The weight at a step.

    Args:
        schedule: the line.
        step: optimizer steps done.
        steps: optimizer steps of the stage.
    """
    share = min(1.0, step / max(1.0, steps * schedule.until))
    return schedule.start + (schedule.end - schedule.start) * share


def adapted(factor: float, success: float, rule: AdaptiveWeights) -> float:
    """A reward's next factor on its configured weight.

    Args:
        factor: the present one.
        success: mean value of the reward since the last change, 0 to 1.
        rule: thresholds and bounds.
    """
    if success < rule.low:
        factor *= rule.raise_by
    elif success > rule.high:
        factor *= rule.lower_by
    return min(rule.most, max(rule.least, factor))


@dataclass
class MovingWeights:
    """The weights of one stage.

    Attributes:
        base: configured weight by reward name, in the trainer's order.
        schedule: lines by reward name.
        rule: how weights follow success; None leaves them.
        steps: optimizer steps of the stage.
        factors: present factor by reward name (adaptive ones).
        sums: success added up since the last change.
        count: how many values are in `sums`.
    """

    base: Mapping[str, float]
    schedule: Mapping[str, WeightSchedule]
    rule: AdaptiveWeights | None
    steps: int
    factors: dict[str, float] = field(default_factory=dict)
    sums: dict[str, float] = field(default_factory=dict)
    count: int = 0

    @property
    def moving(self) -> bool:
        """Whether any weight can change."""
        return bool(self.schedule) or self.rule is not None

    def at(self, step: int) -> dict[str, float]:
        """The weights for the step after so many.

        Args:
            step: optimizer steps done.
        """
        return {
            name: scheduled(self.schedule[name], step, self.steps)
            if name in self.schedule
            else weight * self.factors.get(name, 1.0)
            for name, weight in self.base.items()
        }

    def observe(self, step: int, successes: Mapping[str, float]) -> None:
        """Take in a step's mean reward values, and change the factors when it is time.

        Args:
            step: optimizer steps done.
            successes: mean value by reward name.
        """
        if self.rule is None:
            return
        for name, value in successes.items():
            self.sums[name] = self.sums.get(name, 0.0) + value
        self.count += 1
        if step % self.rule.every:
            return
        for name, weight in self.base.items():
            if weight > 0 and name not in self.schedule and name in self.sums:
                self.factors[name] = adapted(self.factors.get(name, 1.0), self.sums[name] / self.count, self.rule)
        self.sums, self.count = {}, 0

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"factors": dict(self.factors), "sums": dict(self.sums), "count": self.count}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up a checkpoint's state.

        Args:
            state: from `state_dict`.
        """
        self.factors, self.sums, self.count = dict(state["factors"]), dict(state["sums"]), int(state["count"])


def moving_weights(training: TrainingConfig, weights: Mapping[str, float], steps: int) -> MovingWeights:
    """The weights of a stage.

    Args:
        training: the section, stage overrides applied.
        weights: configured weight by reward name.
        steps: optimizer steps of the stage.

    Raises:
        BadInputError: when a scheduled reward is not one of the run's.
    """
    check_scheduled(training, list(weights))
    return MovingWeights(weights, training.weight_schedule, training.adaptive_weights, steps)


def check_scheduled(training: TrainingConfig, names: list[str]) -> None:
    """Refuse a schedule for a reward that is not there.

    Args:
        training: the section.
        names: the run's rewards.

    Raises:
        BadInputError: naming it.
    """
    for name in training.weight_schedule:
        if name not in names:
            raise BadInputError(
                f"training.weight_schedule: {name!r} is not one of the run's rewards ({', '.join(names)})"
            )

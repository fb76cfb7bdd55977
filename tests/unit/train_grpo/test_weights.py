"""Reward weights that move: along a line, or after each reward's success, within bounds, and across a resume."""

import pytest
from pydantic import ValidationError

from components.errors import BadInputError
from components.train_grpo.config import AdaptiveWeights, TrainingConfig, WeightSchedule
from components.train_grpo.weights import MovingWeights, adapted, moving_weights, scheduled

RULE = AdaptiveWeights(every=2)


def test_a_scheduled_weight_moves_in_a_line_and_then_stays():
    line = WeightSchedule(start=1.0, end=0.0, until=0.5)
    assert [scheduled(line, step, 20) for step in (0, 5, 10, 20)] == [1.0, 0.5, 0.0, 0.0]


def test_what_hardly_succeeds_weighs_more_and_what_always_does_less():
    assert adapted(1.0, 0.1, RULE) == pytest.approx(1.2)
    assert adapted(1.0, 0.9, RULE) == pytest.approx(0.9)
    assert adapted(1.0, 0.5, RULE) == 1.0


def test_adaptive_weights_stay_within_their_bounds():
    low, high = 1.0, 1.0
    for _ in range(50):
        low, high = adapted(low, 1.0, RULE), adapted(high, 0.0, RULE)
    assert (low, high) == (RULE.least, RULE.most)


def moving(**changes):
    values = {"base": {"right": 2.0, "form": 1.0, "rude": -1.0}, "schedule": {}, "rule": RULE, "steps": 20}
    return MovingWeights(**(values | changes))


def test_weights_change_when_their_steps_are_over_and_penalties_never():
    weights = moving()
    weights.observe(1, {"right": 0.0, "form": 1.0, "rude": 0.0})
    assert weights.at(1) == {"right": 2.0, "form": 1.0, "rude": -1.0}
    weights.observe(2, {"right": 0.2, "form": 0.9, "rude": 0.0})
    assert weights.at(2) == pytest.approx({"right": 2.4, "form": 0.9, "rude": -1.0})


def test_a_scheduled_reward_does_not_adapt():
    weights = moving(schedule={"form": WeightSchedule(start=1.0, end=3.0)})
    for step in (1, 2):
        weights.observe(step, {"form": 1.0})
    assert weights.at(10)["form"] == pytest.approx(2.0)


def test_a_resumed_run_weighs_as_an_undisturbed_one():
    undisturbed, resumed = moving(), moving()
    for step in (1, 2, 3):
        undisturbed.observe(step, {"right": 0.1})
    resumed.load_state_dict(undisturbed.state_dict())
    for weights in (undisturbed, resumed):
        weights.observe(4, {"right": 0.1})
    assert resumed.at(4) == undisturbed.at(4)
    assert resumed.at(4)["right"] == pytest.approx(2.0 * 1.2 * 1.2)


def test_a_schedule_for_a_reward_that_is_not_there_is_refused():
    training = TrainingConfig.model_validate({"weight_schedule": {"formt": {"start": 1, "end": 0}}})
    with pytest.raises(BadInputError, match="'formt' is not one of the run's rewards"):
        moving_weights(training, {"form": 1.0}, 10)


def test_thresholds_the_wrong_way_round_are_refused():
    with pytest.raises(ValidationError, match="write low < high"):
        AdaptiveWeights(low=0.8, high=0.3)

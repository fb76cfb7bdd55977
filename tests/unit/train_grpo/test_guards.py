"""Each guard fires on the history it is for, and stays silent on a healthy one."""

import math

import pytest

from components.train_grpo.config import GuardsConfig
from components.train_grpo.guards import (
    HIGHEST_REWARD,
    IDENTICAL_GROUPS,
    all_clipped,
    constant_groups,
    entropy_collapse,
    first_stop,
    high_kl,
    identical_completions,
    non_finite,
    reward_below_start,
    step_time_creep,
    warnings,
)

GUARDS = GuardsConfig(constant_groups_steps=5, clipped_steps=5, identical_steps=5, entropy_steps=5)


def history(rows, **columns):
    base = {
        "loss": 0.01,
        "grad_norm": 0.2,
        "reward": 0.5,
        "frac_reward_zero_std": 0.2,
        "completions/clipped_ratio": 0.1,
        "completions/mean_length": 20.0,
        "entropy": 0.4,
        "step_time": 1.0,
        IDENTICAL_GROUPS: 0.0,
        HIGHEST_REWARD: 3.0,
    }
    return [
        {"step": float(step), **base, **{name.replace("__", "/"): value(step) for name, value in columns.items()}}
        for step in range(1, rows + 1)
    ]


def test_a_healthy_history_goes_on():
    assert first_stop(history(60, reward=lambda step: 0.5 + step / 60), GUARDS) is None


@pytest.mark.parametrize("name", ["loss", "grad_norm", "reward"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_value_that_is_not_finite_stops_at_once(name, value):
    rows = [*history(2), {"step": 3.0, name: value}]
    assert f"{name} became {value} at step 3" in non_finite(rows)


def test_constant_groups_with_a_risen_reward_are_saturation():
    rows = history(10, reward=lambda step: step / 10, frac_reward_zero_std=lambda step: 1.0)
    assert "saturated" in constant_groups(rows, GUARDS)


def test_constant_groups_without_a_risen_reward_are_collapse():
    rows = history(10, reward=lambda step: 0.0, frac_reward_zero_std=lambda step: 1.0)
    assert "collapsed" in constant_groups(rows, GUARDS)


def test_one_group_with_spread_resets_the_count():
    rows = history(10, frac_reward_zero_std=lambda step: 0.5 if step == 8 else 1.0)
    assert constant_groups(rows, GUARDS) is None


def test_a_reward_that_falls_far_below_its_start_stops():
    rows = history(40, reward=lambda step: 1.0 - step / 40)
    assert "makes the policy worse" in reward_below_start(rows, GUARDS)


def test_a_reward_that_wavers_goes_on():
    rows = history(40, reward=lambda step: 0.5 + 0.2 * math.sin(step))
    assert reward_below_start(rows, GUARDS) is None


def test_completions_all_clipped_stop():
    rows = history(5, completions__clipped_ratio=lambda step: 1.0)
    assert "max_completion_length" in all_clipped(rows, GUARDS)


def test_zero_switches_a_guard_off():
    rows = history(60, frac_reward_zero_std=lambda step: 1.0, completions__clipped_ratio=lambda step: 1.0)
    off = GuardsConfig(constant_groups_steps=0, clipped_steps=0, reward_drop=0, identical_steps=0, entropy_steps=0)
    assert first_stop(rows, off) is None


def test_a_high_kl_warns():
    assert "above 0.5" in high_kl([{"step": 1.0, "kl": 0.7}], GUARDS)
    assert high_kl([{"step": 1.0, "kl": 0.2}], GUARDS) is None


def test_constant_groups_near_the_highest_reward_are_saturation_from_the_start():
    rows = history(10, reward=lambda step: 3.0, frac_reward_zero_std=lambda step: 1.0)
    assert "saturated" in constant_groups(rows, GUARDS)


def test_constant_groups_of_one_completion_are_told_from_a_reward_that_is_never_found():
    same = {"reward": lambda step: 0.0, "frac_reward_zero_std": lambda step: 1.0}
    identical = history(10, completions__identical_groups=lambda step: 1.0, **same)
    assert "one completion over and over" in constant_groups(identical, GUARDS)
    assert "never found a reward" in constant_groups(history(10, **same), GUARDS)


def test_identical_completions_stop_even_where_the_reward_differs():
    rows = history(5, completions__identical_groups=lambda step: 1.0)
    assert "identical" in identical_completions(rows, GUARDS)
    assert identical_completions(history(5, completions__identical_groups=lambda step: 0.5), GUARDS) is None


def test_an_entropy_that_stays_near_zero_stops():
    assert "no longer explores" in entropy_collapse(history(6, entropy=lambda step: 0.0001), GUARDS)
    assert entropy_collapse(history(6, entropy=lambda step: 0.1 if step == 4 else 0.0001), GUARDS) is None


def test_steps_that_take_longer_and_longer_warn_with_the_cause():
    slow = history(40, step_time=lambda step: 1.0 + step / 5)
    assert "completions did not grow" in step_time_creep(slow, GUARDS)
    longer = history(40, step_time=lambda step: 1.0 + step / 5, completions__mean_length=lambda step: 20.0 * step)
    assert "completions grew" in step_time_creep(longer, GUARDS)
    assert step_time_creep(history(40), GUARDS) is None


def test_a_warning_is_no_stop():
    rows = history(40, step_time=lambda step: 1.0 + step / 5)
    assert first_stop(rows, GUARDS) is None
    assert set(warnings(rows, GUARDS)) == {"step_time"}

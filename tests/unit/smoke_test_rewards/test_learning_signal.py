"""Figures over sampled groups, on numbers small enough to check by hand."""

import pytest

from components.smoke_test_rewards.config import SmokeTestConfig
from components.smoke_test_rewards.learning_signal import (
    Group,
    SampledCompletion,
    judge_signal,
    measure_signal,
    weighted_total,
)

WEIGHTS = {"value": 2.0, "form": 1.0}


def group(*scores, text="text {}", truncated=False):
    completions = []
    for index, (value, form) in enumerate(scores):
        own = {"value": value, "form": form}
        total = weighted_total(own, WEIGHTS)
        completions.append(SampledCompletion(text.format(index), 10, truncated, own, total))
    return Group("row 1", "2 + 2?", "4", tuple(completions))


def names(findings, level=None):
    return [finding.name for finding in findings if level in (None, finding.level)]


def test_total_leaves_out_rewards_that_do_not_apply_as_trl_does():
    assert weighted_total({"value": None, "form": 0.5}, WEIGHTS) == 0.5
    assert weighted_total({"value": None, "form": None}, WEIGHTS) is None


def test_a_group_is_constant_when_totals_are_equal_though_rewards_differ():
    assert group((0.5, 0.0), (0.0, 1.0)).constant
    assert not group((1.0, 0.0), (0.0, 1.0)).constant


def test_figures_of_two_groups():
    signal = measure_signal([group((1, 1), (0, 1)), group((0, 0), (0, 0))], WEIGHTS, temperature=1.0)
    assert signal.constant_share == 0.5
    assert signal.mean_total == pytest.approx((3 + 1 + 0 + 0) / 4)
    assert signal.mean_spread == pytest.approx(0.5)
    value, form = signal.rewards
    assert (value.mean, value.applies, value.constant_share) == (0.25, 1.0, 0.5)
    assert form.constant_share == 1.0


def test_shares_of_variance_are_parts_of_one_whole_within_groups():
    signal = measure_signal([group((1, 1), (0, 0)), group((0, 1), (0, 0))], WEIGHTS, temperature=1.0)
    # Group 1: totals 3 and 0, covariances 1.5 (value) and 0.75 (form); group 2: only the form, 0.25.
    assert [reward.share_of_variance for reward in signal.rewards] == pytest.approx([1.5 / 2.5, 1.0 / 2.5])


def test_differences_between_groups_do_not_count_as_variance():
    signal = measure_signal([group((1, 1), (1, 1)), group((0, 0), (0, 0))], WEIGHTS, temperature=1.0)
    assert [reward.share_of_variance for reward in signal.rewards] == [None, None]


def test_nearly_all_groups_constant_fails_and_says_what_would_help():
    groups = [group((0, 0), (0, 0))] * 9 + [group((1, 1), (0, 0))]
    signal = measure_signal(groups, WEIGHTS, temperature=0.7)
    [failure] = [f for f in judge_signal(signal, SmokeTestConfig(), honest_total=3.0) if f.level == "failure"]
    assert failure.name == "signal/constant_groups"
    assert "9 of 10 groups (90%)" in failure.sentence
    for help_ in ("easier rows", "partial credit", "training.temperature (it is 0.7)", "num_generations (G is 2)"):
        assert help_ in failure.mend


def test_one_group_fewer_does_not_fail():
    groups = [group((0, 0), (0, 0))] * 8 + [group((1, 1), (0, 0))] * 2
    signal = measure_signal(groups, WEIGHTS, temperature=0.7)
    assert "signal/constant_groups" in names(judge_signal(signal, SmokeTestConfig(), honest_total=3.0), "warning")


def test_a_base_model_that_can_do_it_already_is_told_to_take_harder_rows():
    signal = measure_signal([group((1, 1), (1, 1))], WEIGHTS, temperature=1.0)
    [failure] = [f for f in judge_signal(signal, SmokeTestConfig(), honest_total=3.0) if f.level == "failure"]
    assert "harder rows" in failure.mend
    assert "easier" not in failure.mend


def test_a_cut_off_base_model_is_told_the_limit():
    signal = measure_signal([group((0, 0), (0, 0), truncated=True)], WEIGHTS, temperature=1.0)
    [failure] = [f for f in judge_signal(signal, SmokeTestConfig(), honest_total=3.0) if f.level == "failure"]
    assert "max_completion_length (100%" in failure.mend


def test_two_rewards_that_say_the_same_are_a_redundant_pair():
    signal = measure_signal([group((1, 1), (0, 0), (0.5, 0.5))], WEIGHTS, temperature=1.0)
    assert signal.correlations == (("value", "form", pytest.approx(1.0)),)
    assert "signal/value_form_redundant" in names(judge_signal(signal, SmokeTestConfig(), honest_total=3.0), "warning")


def test_a_reward_that_makes_up_all_the_differences_is_named():
    signal = measure_signal([group((1, 1), (0, 1))], WEIGHTS, temperature=1.0)
    assert "signal/value_dominates" in names(judge_signal(signal, SmokeTestConfig(), honest_total=3.0), "warning")


def test_a_reward_that_never_applies_is_named():
    signal = measure_signal([group((None, 1), (None, 0))], WEIGHTS, temperature=1.0)
    assert "signal/value_never_applies" in names(judge_signal(signal, SmokeTestConfig(), honest_total=3.0))

"""Metrics: shares and their intervals, pass@k, majority, slices; each against a value worked out another way."""

from itertools import combinations
from math import comb
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.contract import default_contract
from components.evaluate_holdout.metrics import (
    bootstrap_mean,
    majority,
    measure,
    pass_at_k,
    safe_name,
    share,
    wilson,
)


def sample(row: int, *, strict: bool, right: bool, tokens: int = 10, **more: Any) -> dict[str, Any]:
    return {
        "id": f"row-{row}",
        "gold": "7",
        "strict": strict,
        "lenient": True,
        "reasons": [] if strict else ["missing_tag", "extra_text"],
        "answer_read_strict": ("7" if right else "8") if strict else None,
        "answer_read_lenient": "7" if right else "8",
        "correct_strict": strict and right,
        "correct_lenient": right,
        "tokens": tokens,
        "truncated": False,
    } | more


def test_each_share_counts_what_its_name_says() -> None:
    samples = [sample(row, strict=row < 30, right=row < 40, tokens=row + 1) for row in range(100)]
    metrics = measure(samples, default_contract(), seed=0)
    assert {name: metrics[name]["value"] for name in ("format_compliance", "accuracy_strict", "accuracy_lenient")} == {
        "format_compliance": 0.3,
        "accuracy_strict": 0.3,
        "accuracy_lenient": 0.4,
    }
    assert metrics["failure/missing_tag"]["value"] == 0.7
    assert metrics["completion_tokens/p90"]["value"] == pytest.approx(90.1)
    assert all(figure["n"] == 100 for figure in metrics.values())
    assert not [name for name in metrics if name.startswith(("pass_at", "majority"))]


def test_one_completion_a_prompt_gets_wilsons_interval() -> None:
    figure = share([True] * 81 + [False] * 182, range(263), seed=0)
    assert (round(figure.low or 0, 4), round(figure.high or 0, 4)) == (0.2553, 0.3662)  # Newcombe 1998, table I


def test_completions_of_one_prompt_do_not_count_as_many() -> None:
    # 50 prompts, all 16 completions of each alike: no more is known than from 50 completions.
    values = [prompt % 2 == 0 for prompt in range(50) for _ in range(16)]
    prompts = [prompt for prompt in range(50) for _ in range(16)]
    figure = share(values, prompts, seed=0)
    low, high = wilson(25, 50)
    assert figure.low == pytest.approx(low, abs=0.02)
    assert figure.high == pytest.approx(high, abs=0.02)
    assert figure.n == 800


def test_when_every_prompt_agrees_the_interval_still_has_a_width() -> None:
    figure = share([False] * 80, [prompt for prompt in range(20) for _ in range(4)], seed=0)
    assert figure.low == 0
    assert figure.high == pytest.approx(wilson(0, 20)[1])


@given(st.integers(1, 12).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_pass_at_k_is_the_share_of_subsets_with_a_right_one(case: tuple[int, int, int]) -> None:
    n, correct, k = case
    subsets = list(combinations([True] * correct + [False] * (n - correct), k))
    assert len(subsets) == comb(n, k)
    assert pass_at_k(n, correct, k) == pytest.approx(np.mean([any(subset) for subset in subsets]))


def test_pass_at_k_of_published_code_benchmarks_is_unbiased() -> None:
    generator = np.random.default_rng(0)
    draws = generator.binomial(20, 0.1, size=20_000)
    assert np.mean([pass_at_k(20, int(c), 5) for c in draws]) == pytest.approx(1 - 0.9**5, abs=0.005)


def test_several_completions_give_pass_at_powers_of_two_and_majority() -> None:
    samples = [sample(row, strict=True, right=index < row) for row in range(6) for index in range(5)]
    metrics = measure(samples, default_contract(), seed=0)
    assert [name for name in metrics if name.startswith("pass_at") and name.endswith("_strict")] == [
        "pass_at_1_strict",
        "pass_at_2_strict",
        "pass_at_4_strict",
        "pass_at_5_strict",
    ]
    assert metrics["pass_at_1_strict"]["value"] == pytest.approx(metrics["accuracy_strict"]["value"])
    assert metrics["pass_at_5_strict"]["value"] == pytest.approx(5 / 6)
    assert metrics["majority_at_5_strict"]["value"] == pytest.approx(3 / 6)  # 3, 4 and 5 right of 5
    assert metrics["majority_at_5_strict"]["n"] == 6


def test_the_majority_counts_equal_values_together() -> None:
    contract = default_contract()
    assert majority(["12", "7", "7.0", None, "12.5"], contract) == "7"
    assert majority(["1", "2"], contract) == "1", "the earliest of equals"
    assert majority([None, None], contract) is None


def test_slices_have_their_own_figures() -> None:
    samples = [sample(row, strict=True, right=row % 4 != 0, level=["easy", "hard/odd"][row % 2]) for row in range(40)]
    metrics = measure(samples, default_contract(), seed=0, slices="level")
    assert metrics["slice/level/easy/accuracy_strict"]["value"] == 0.5
    assert metrics["slice/level/hard_odd/accuracy_strict"] == {
        "value": 1.0,
        "low": pytest.approx(wilson(20, 20)[0]),
        "high": 1.0,
        "n": 20,
    }


def test_a_reward_that_does_not_apply_is_left_out_of_its_mean() -> None:
    samples = [sample(row, strict=True, right=True) | {"rewards.x": None if row % 2 else 3.0} for row in range(10)]
    metrics = measure(samples, default_contract(), seed=0)
    assert (metrics["reward/x"]["value"], metrics["reward/x"]["n"]) == (3.0, 5)
    nothing = measure([entry | {"rewards.x": None} for entry in samples], default_contract(), seed=0)
    assert "reward/x" not in nothing


def test_the_same_samples_give_the_same_intervals() -> None:
    values = np.random.default_rng(1).random(200)
    assert bootstrap_mean(values, 5) == bootstrap_mean(values, 5)
    assert bootstrap_mean(values, 5) != bootstrap_mean(values, 6)


@pytest.mark.parametrize(("text", "name"), [("a/b:c@d", "a_b_c_d"), ("  ", "_"), ("größer 3.5", "gr__er 3.5")])
def test_metric_names_hold_only_what_mlflow_takes(text: str, name: str) -> None:
    assert safe_name(text) == name

"""Intervals and tests against published values, against scipy, and by simulation of their coverage and size."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from components.judge_candidate.statistics import (
    bootstrap_mean,
    mcnemar_exact,
    newcombe,
    rows_to_decide,
    wilson,
)

DRAWS = 4000


@pytest.mark.parametrize(
    ("table", "low", "high"),
    [
        # Complete response before and after consolidation therapy (Cavo et al. 2012), in Fagerland, Lydersen and Laake,
        # Statistical Analysis of Contingency Tables (2017), chapter 8, and their R package contingencytables.
        ((59, 6, 16, 80), -0.1186, -0.0046),
        # Airway hyper-responsiveness before and after stem cell transplantation (Bentur et al. 2009), same chapter.
        ((1, 1, 7, 12), -0.507, -0.026),
    ],
)
def test_newcombe_gives_the_published_intervals(table: tuple[int, int, int, int], low: float, high: float) -> None:
    places = 4 if low == -0.1186 else 3
    found = newcombe(*table)
    assert round(float(found[0]), places) == low
    assert round(float(found[1]), places) == high


def test_newcombe_holds_where_walds_interval_has_no_width() -> None:
    low, high = newcombe(100, 0, 0, 0)
    assert low == pytest.approx(-0.0370, abs=1e-4)
    assert high == pytest.approx(0.0370, abs=1e-4)
    low, high = newcombe(0, 40, 0, 0)  # 0 % against 100 %
    assert 0.8 < low < 1
    assert high == 1


@given(*[st.integers(0, 300)] * 4)
def test_newcombe_holds_its_estimate_and_turns_round_with_the_models(a: int, b: int, c: int, d: int) -> None:
    if a + b + c + d == 0:
        return
    low, high = newcombe(a, b, c, d)
    difference = (b - c) / (a + b + c + d)
    assert -1 <= low <= difference + 1e-12
    assert difference - 1e-12 <= high <= 1
    mirrored = newcombe(a, c, b, d)
    assert mirrored[0] == pytest.approx(-high, abs=1e-12)
    assert mirrored[1] == pytest.approx(-low, abs=1e-12)


@given(
    st.integers(1, 2000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), st.sampled_from([0.9, 0.95, 0.99])
)
def test_wilson_is_scipys(counts: tuple[int, int], confidence: float) -> None:
    successes, n = counts
    expected = binomtest(successes, n).proportion_ci(confidence, method="wilson")
    low, high = wilson(successes, n, confidence)
    assert low == pytest.approx(expected.low, abs=1e-9)
    assert high == pytest.approx(expected.high, abs=1e-9)


def test_wilson_gives_the_published_intervals() -> None:
    # Newcombe, Two-sided confidence intervals for the single proportion (1998), table I, method 3.
    for successes, n, low, high in (
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ):
        found = wilson(successes, n)
        assert round(float(found[0]), 4) == low
        assert round(float(found[1]), 4) == high


def test_mcnemar_gives_the_published_p_value() -> None:
    # Cavo et al. 2012, exact conditional test, in Fagerland, Lydersen and Laake 2013 (BMC Med Res Methodol 13:91).
    assert mcnemar_exact(6, 16) == pytest.approx(0.0525, abs=5e-5)
    assert mcnemar_exact(1, 7) == pytest.approx(0.0703, abs=5e-5)
    assert mcnemar_exact(0, 0) == 1


def draw_tables(n: int, p_first: float, p_second: float, both: float, seed: int) -> np.ndarray:
    """Random tables, shape (4, DRAWS)."""
    shares = [both, p_first - both, p_second - both, 1 - p_first - p_second + both]
    return np.random.default_rng(seed).multinomial(n, shares, size=DRAWS).T


@pytest.mark.parametrize(
    ("n", "p_first", "p_second", "both"),
    [
        (40, 0.5, 0.5, 0.4),
        (100, 0.9, 0.5, 0.5),
        (200, 0.05, 0.02, 0.02),
        (500, 0.99, 0.97, 0.965),
        (1319, 0.6, 0.55, 0.47),
    ],
)
def test_newcombe_covers_the_truth_as_often_as_it_says(n: int, p_first: float, p_second: float, both: float) -> None:
    low, high = newcombe(*draw_tables(n, p_first, p_second, both, seed=1))
    truth = p_first - p_second
    covered = np.mean((low <= truth) & (truth <= high))
    assert 0.935 <= covered <= 0.995


@pytest.mark.parametrize(("n", "p"), [(30, 0.5), (100, 0.9), (500, 0.97), (1319, 0.01)])
def test_wilson_covers_the_truth_as_often_as_it_says(n: int, p: float) -> None:
    successes = np.random.default_rng(2).binomial(n, p, size=DRAWS)
    low, high = wilson(successes, n)
    assert 0.935 <= np.mean((low <= p) & (p <= high)) <= 0.985


def test_the_bootstrap_covers_the_mean_over_prompts() -> None:
    generator = np.random.default_rng(3)
    rates = generator.beta(2, 1, size=200_000)
    covered = 0
    for trial in range(120):
        values = generator.binomial(8, generator.choice(rates, size=100)) / 8
        low, high = bootstrap_mean(values, seed=trial)
        covered += low <= 2 / 3 <= high
    assert 0.89 <= covered / 120 <= 0.99


def test_the_bootstrap_of_equal_values_still_has_a_width() -> None:
    low, high = bootstrap_mean(np.zeros(50))
    assert low < -0.05
    assert high > 0.05


def test_mcnemar_rejects_equal_models_at_most_as_often_as_it_says() -> None:
    generator = np.random.default_rng(4)
    for discordant in (12, 60, 264):
        first = generator.binomial(discordant, 0.5, size=DRAWS)
        p_values = {count: mcnemar_exact(int(count), discordant - int(count)) for count in np.unique(first)}
        assert np.mean([p_values[count] < 0.05 for count in first]) <= 0.05


@pytest.fixture
def discordant_tables() -> tuple[np.ndarray, np.ndarray]:
    """1,319 rows with 20 % discordant pairs: an equal candidate, and one worse by 10 points (55 % -> 45 %)."""
    equal = draw_tables(1319, 0.55, 0.55, 0.45, seed=5)
    worse = draw_tables(1319, 0.45, 0.55, 0.40, seed=6)
    return equal, worse


def test_at_five_points_margin_an_equal_candidate_passes_and_one_worse_by_ten_fails(
    discordant_tables: tuple[np.ndarray, np.ndarray],
) -> None:
    equal, worse = discordant_tables
    assert np.mean(newcombe(*equal)[0] > -0.05) >= 0.95
    assert np.mean(newcombe(*worse)[1] <= -0.05) >= 0.95


def test_an_equal_candidate_is_called_better_in_at_most_five_of_a_hundred(
    discordant_tables: tuple[np.ndarray, np.ndarray],
) -> None:
    equal, _ = discordant_tables
    assert np.mean(newcombe(*equal)[0] > 0) <= 0.05


def test_rows_to_decide_is_the_first_number_that_decides() -> None:
    def decided(times: float) -> bool:
        low, high = wilson(0.82 * 100 * times, 100 * times)
        return bool(low >= 0.8 or high < 0.8)

    needed = rows_to_decide(100, decided)
    assert needed is not None
    # Wilson's bound is the score test turned round: z^2 * 0.8 * 0.2 / (0.82 - 0.8)^2 rows, here 1,537.
    assert needed == 1600, "rounded up to two digits"
    assert not decided(1500 / 100)
    assert decided(1600 / 100)
    assert rows_to_decide(100, lambda _times: False) is None

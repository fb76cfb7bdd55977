"""The report's page: self-contained, everything escaped, parts without data left out, samples chosen fairly."""

import math
import random
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from components.register_model.charts import moving_average
from components.register_model.report import (
    ReportInputs,
    choose_pairs,
    headline,
    reason_shares,
    render_report,
    training_curves,
    write_report,
)


def figure(value: float, half: float = 0.03) -> dict[str, float]:
    return {"value": value, "low": max(0.0, value - half), "high": min(1.0, value + half), "n": 500}


def difference(base: float, candidate: float, half: float = 0.04) -> dict[str, Any]:
    gap = candidate - base
    return {
        "base": figure(base),
        "candidate": figure(candidate),
        "difference": {"value": gap, "low": gap - half, "high": gap + half},
        "wins": 300,
        "losses": 20,
        "ties": 180,
        "mcnemar_p": 0.00001,
    }


def make_verdict(**changes: Any) -> dict[str, Any]:
    return {
        "verdict": "pass",
        "decoding": "greedy",
        "rows": 500,
        "confidence": 0.95,
        "gates": [
            {"name": "no_leakage", "status": "pass", "sentence": "No holdout row is in the training split."},
            {
                "name": "min_format_compliance",
                "status": "pass",
                "sentence": "Strict format compliance is 99.2% [98.0%, 99.7%]; at least 80.0% is asked for.",
            },
            {
                "name": "accuracy_margin",
                "status": "inconclusive",
                "sentence": "Lenient accuracy went from 60.0% to 57.0%, -3.0 points [-6.1, +0.1], and more than "
                "-5.0 points is asked for: about 1,300 rows in all would decide it, should shares stay so.",
            },
        ],
        "differences": {
            "format_compliance": difference(0.02, 0.99),
            "format_compliance_lenient": difference(0.91, 0.99),
            "accuracy_strict": difference(0.01, 0.62),
            "accuracy_lenient": difference(0.60, 0.62),
            "truncation_rate": difference(0.03, 0.0),
        },
        "notes": ["The two models' chat templates render the same messages differently."],
        "base_model": "a" * 64,
        "candidate_model": "b" * 64,
        "holdout_fingerprint": "f" * 64,
        "contract_hash": "c" * 64,
    } | changes


def make_pair(index: int, outcome: str, lenient: str = "tied", right: bool = False) -> dict[str, Any]:
    right = right or outcome == "won"
    answer = 12 + index
    return {
        "id": f"row-{index}",
        "question": f"Mia has {index + 5} apples and buys {7} more at the market. How many apples does she have now?",
        "gold": str(answer),
        "outcome_strict": outcome,
        "outcome_lenient": lenient,
        "outcome_format": "won",
        "base_completion": f"The answer is {answer}."
        if index % 2
        else f"<reasoning>{index + 5} + 7</reasoning> {answer}",
        "base_strict": False,
        "base_reasons": ["missing_tag", "extra_text"],
        "base_answer_read_lenient": str(answer),
        "base_correct_strict": outcome == "lost",
        "base_correct_lenient": True,
        "base_tokens": 9,
        "base_truncated": index == 3,
        "candidate_completion": f"<reasoning>\n{index + 5} + 7 = {answer}\n</reasoning>\n<answer>\n{answer}\n</answer>",
        "candidate_strict": True,
        "candidate_reasons": [],
        "candidate_answer_read_lenient": str(answer),
        "candidate_correct_strict": right,
        "candidate_correct_lenient": right or lenient == "won",
        "candidate_tokens": 22,
        "candidate_truncated": False,
    }


def make_history(steps: int = 80) -> list[dict[str, Any]]:
    """A cold start of ten steps, then GRPO with curves of the usual shapes."""
    chance = random.Random(0)
    rows: list[dict[str, Any]] = [{"step": step, "stage": "cold", "loss": 5.0 - step / 3} for step in range(1, 11)]
    for step in range(11, steps + 11):
        progress = 1 - math.exp(-(step - 10) / 25)
        noise = lambda scale: chance.gauss(0, scale)  # noqa: E731
        rows.append(
            {
                "step": step,
                "stage": "main",
                "reward": 0.6 + 1.9 * progress + noise(0.12),
                "reward_std": 0.9 - 0.4 * progress,
                "frac_reward_zero_std": max(0.0, min(1.0, 0.05 + 0.35 * progress + noise(0.08))),
                "rewards/correctness/mean": 0.2 + 0.4 * progress + noise(0.06),
                "rewards/strict_format/mean": 0.3 + 0.65 * progress + noise(0.04),
                "rewards/incremental_format/mean": 0.5 + 0.45 * progress + noise(0.03),
                "completions/mean_length": 17 + 5 * progress + noise(0.7),
                "completions/max_length": min(40, 29 + 4 * progress + noise(2)),
                "completions/clipped_ratio": max(0.0, 0.12 * (1 - progress) + noise(0.02)),
                "entropy": 1.4 - 1.1 * progress + noise(0.05),
                "grad_norm": 0.6 + abs(noise(0.25)),
                "learning_rate": 0.002,
            }
        )
    return rows


def make_inputs(**changes: Any) -> ReportInputs:
    base = {
        "failure/missing_tag": figure(0.93),
        "failure/extra_text": figure(0.71),
        "failure/truncated": figure(0.03),
        "completion_tokens/mean": {"value": 12.1, "low": None, "high": None, "n": 500},
        "completion_tokens/p90": {"value": 22.0, "low": None, "high": None, "n": 500},
        "reward/correctness": {"value": 0.02, "low": 0.01, "high": 0.03, "n": 500},
        "also/bare/accuracy_strict": figure(0.01),
    }
    candidate = {
        "failure/missing_tag": figure(0.004),
        "failure/empty": figure(0.002),
        "completion_tokens/mean": {"value": 21.9, "low": None, "high": None, "n": 500},
        "completion_tokens/p90": {"value": 24.0, "low": None, "high": None, "n": 500},
        "reward/correctness": {"value": 1.24, "low": 1.15, "high": 1.33, "n": 500},
        "also/bare/accuracy_strict": figure(0.58),
    }
    settings = {
        "engine": "transformers",
        "version": "5.17.0",
        "dtype": "float32",
        "device": "cpu",
        "sampling": {"greedy": {"max_new_tokens": 40}},
    }
    values: dict[str, Any] = {
        "run_name": "quickstart",
        "config": {
            "run": {"name": "quickstart", "seed": 42},
            "model": {"source": "/data/quickstart/model", "revision": None},
            "training": {"learning_rate": 0.002, "num_generations": 8, "max_completion_length": 40},
            "lora": {"r": 16, "alpha": 32.0, "dropout": 0.0, "target_modules": "all-linear"},
        },
        "training": make_history(),
        "base_metrics": base,
        "base_settings": settings,
        "base_samples": [],
        "candidate_metrics": candidate,
        "candidate_settings": settings,
        "candidate_samples": [],
        "verdict": make_verdict(),
        "pairs": [make_pair(index, "won") for index in range(30)]
        + [make_pair(index, "lost", "lost") for index in range(30, 34)]
        + [make_pair(index, "tied", right=index % 2 == 0) for index in range(34, 60)],
        "smoke": {
            "passed": True,
            "findings": [
                {
                    "name": "length/short",
                    "level": "warning",
                    "sentence": "the shortest completion scores as much as an honest one",
                    "mend": "",
                    "waived": None,
                }
            ],
            "rewards": [
                {"name": "correctness", "source": "correctness", "weight": 2.0, "aspect": "value"},
                {"name": "strict_format", "source": "strict_format", "weight": 1.0, "aspect": "format"},
                {"name": "brief", "source": "rewards.py:brief", "weight": 0.2, "aspect": None},
            ],
            "signal": {"groups": [1] * 16, "constant_share": 0.06, "mean_spread": 0.41, "mean_total": 0.83},
        },
        "dataset": {
            "splits": {
                "train": {"rows": 4000, "prompt_tokens": {"p50": 61, "max": 88}},
                "validation": {"rows": 128, "prompt_tokens": {"p50": 60, "max": 84}},
            },
            "warnings": ["train: 12 of 4012 rows dropped: repeats of another row"],
        },
        "versions": {"trl": "1.16.0", "transformers": "5.17.0", "torch": "2.13.0+cpu", "device": "CPU"},
        "links": {"run": "0123456789abcdef in sqlite:///mlflow.db", "model": "file:///store/merged/0123"},
        "facts": {"Training took": "58 s, 81,920 tokens"},
        "holdout_uses": 7,
        "reproduce": ["git checkout 0a1b2c3", "grpo run config.yaml"],
    }
    return ReportInputs(**(values | changes))


class Page(HTMLParser):
    """Collects what a test asks about, and refuses tags that do not close."""

    VOID = frozenset({"meta", "br", "hr", "img", "link", "input"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.headings: list[str] = []
        self.loaded: list[str] = []
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.feed(text)
        assert self.open == [], f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.loaded += [value for name, value in attrs if name in {"src", "href", "xlink:href"} and value]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "h2":
            self.headings.append(data)


@pytest.fixture(scope="module")
def page() -> str:
    return render_report(make_inputs())


def test_the_page_loads_nothing_and_is_well_formed(page: str, tmp_path: Path) -> None:
    parsed = Page(page)
    assert all(place.startswith("#") for place in parsed.loaded), "only references inside the page"
    assert not parsed.tags & {"script", "link", "img", "iframe", "object"}
    assert "@import" not in page
    assert not re.search(r"url\((?!#)", page)
    path = tmp_path / "report.html"
    write_report(make_inputs(), path)
    assert path.read_text(encoding="utf-8") == page, "the same inputs give the same page"


def test_every_part_is_there(page: str) -> None:
    assert Page(page).headings == [
        "Gates",
        "Before and after",
        "What was trained on what",
        "Training",
        "Further questions",
        "Rewards on the holdout",
        "Samples, side by side",
        "Smoke test of the rewards",
        "To repeat this run",
    ]
    assert "7 evaluations so far" in page
    assert "about 1,300 rows in all would decide it" in page
    assert page.count('<details class="pair"') == 20


def test_parts_without_data_are_left_out() -> None:
    page = render_report(make_inputs(smoke=None, training=[], pairs=[], base_metrics={}, candidate_metrics={}))
    assert Page(page).headings == ["Gates", "Before and after", "What was trained on what", "To repeat this run"]


def test_what_models_and_people_wrote_is_escaped() -> None:
    attack = "<script>alert(1)</script><img src=x onerror=alert(1)>"
    pair = make_pair(0, "won") | {"candidate_completion": attack, "question": attack, "gold": attack}
    page = render_report(
        make_inputs(
            run_name=attack,
            pairs=[pair],
            config={"run": {"name": attack}},
            candidate_metrics={f"failure/{attack}": figure(0.5), f"slice/kind/{attack}/accuracy_strict": figure(0.5)},
            links={attack: attack},
            training=[{"step": 1, f"rewards/{attack.replace('/', '')}/mean": 1.0}, {"step": 2, "reward": 1.0}],
        )
    )
    parsed = Page(page)
    assert not parsed.tags & {"script", "img"}
    assert "&lt;script&gt;alert(1)" in page


@pytest.mark.parametrize(
    ("strict", "lenient", "said"),
    [
        ((0.01, 0.62), (0.60, 0.62), "The gain is form: the candidate says in the format"),
        ((0.01, 0.72), (0.60, 0.72), "About 17% of the gain is better answers, the rest is form."),
        ((0.01, 0.40), (0.60, 0.40), "the task itself got worse"),
        ((0.50, 0.40), (0.60, 0.50), "The candidate is worse than the base."),
        ((0.50, 0.51), (0.60, 0.60), "No difference to the base is shown."),
    ],
)
def test_the_headline_tells_form_from_answers(
    strict: tuple[float, float], lenient: tuple[float, float], said: str
) -> None:
    verdict = make_verdict()
    verdict["differences"] |= {"accuracy_strict": difference(*strict), "accuracy_lenient": difference(*lenient)}
    assert said in headline(verdict)


def test_samples_show_losses_as_well_as_wins() -> None:
    won, lost = ([make_pair(index, outcome) for index in range(100)] for outcome in ("won", "lost"))
    shown = [row["outcome"] for row in choose_pairs(won + lost)]
    assert shown == ["won"] * 10 + ["lost"] * 10
    few = [row["outcome"] for row in choose_pairs(won + lost[:3])]
    assert few == ["won"] * 17 + ["lost"] * 3
    ties = [make_pair(index, "tied", right=index % 2 == 0) for index in range(40)]
    assert [row["outcome"] for row in choose_pairs(won[:2] + ties)] == ["won"] * 2 + ["both wrong"] * 9 + [
        "both right"
    ] * 9


def test_a_row_lost_leniently_is_shown_as_lost() -> None:
    pair = make_pair(0, "won", "lost")
    assert choose_pairs([pair])[0]["outcome"] == "lost"


def test_reasons_of_either_model_are_listed_most_frequent_first() -> None:
    rows = reason_shares(make_inputs())
    assert [row["name"] for row in rows] == ["missing tag", "extra text", "truncated", "empty"]
    assert rows[0]["candidate"] == 0.004
    assert rows[3]["base"] == 0.0


def test_curves_without_values_are_left_out() -> None:
    titles = [chart["title"] for chart in training_curves(make_history())]
    assert titles == [
        "Total reward",
        "Each reward",
        "Groups without spread",
        "Completion length",
        "Cut off at the limit",
        "Entropy",
        "Gradient norm",
    ]


def test_the_moving_average_keeps_length_and_level_and_does_not_end_in_noise() -> None:
    assert moving_average([2.0] * 30) == [2.0] * 30
    line = [float(value) for value in range(50)]
    smooth = moving_average(line, share=0.2)
    assert len(smooth) == 50
    assert smooth[25] == pytest.approx(25)
    assert moving_average([1.0] * 49 + [0.0], share=0.2)[-1] == pytest.approx(5 / 6)

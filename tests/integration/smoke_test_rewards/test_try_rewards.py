"""The smoke test's first two parts on real rewards, through the real guard."""

import time

import pytest

from components.contract import build_contract, default_contract
from components.contract.config import ContractConfig
from components.errors import GateFailedError
from components.rewards.config import PRESETS, RewardsConfig
from components.smoke_test_rewards.base_samples import DrawnCompletion, DrawnGroup
from components.smoke_test_rewards.config import SmokeTestConfig
from components.smoke_test_rewards.rows import make_row
from components.smoke_test_rewards.smoke_test_rewards import require_passed, try_rewards
from components.smoke_test_rewards.traps import build_samples


def try_on(rows, rewards, smoke_test=None, contract=None):
    config = RewardsConfig.model_validate(rewards)
    return try_rewards(rows, contract or default_contract(), config, SmokeTestConfig.model_validate(smoke_test or {}))


def by_name(report):
    return {finding.name: finding for finding in report.findings}


def test_the_librarys_defaults_pass_without_a_finding(rows):
    report = try_on(rows, {})
    assert report.passed
    assert report.findings == ()
    assert report.honest_total == pytest.approx(3.5)


def test_the_guides_rewards_are_caught_by_name(rows, guide_rewards):
    report = try_on(rows, guide_rewards, {"seconds_per_completion": 0.1})
    found = by_name(report)
    assert not report.passed
    # The value reward compares text: honest phrasings are paid like wrong answers.
    for kind, shown in (("thousands_comma", "`1,250`"), ("currency", "`$18`"), ("trailing_zeros", "`5.00`")):
        sentence = found[f"correctness/{kind}"].sentence
        assert sentence.startswith("correctness: honest ")
        assert shown in sentence
        assert "scored 0, wrong" in sentence
    # The format reward finds its tags in anything.
    for kind in ("three_answer_blocks", "placeholder_echoed", "empty_tags"):
        assert "is paid in full: 1" in found[f"formatted/{kind}"].sentence
    # Its pattern is quadratic on openings that never close.
    assert "timed_out" in "".join(name for name in found if name.startswith("formatted/"))
    # The incremental reward counts tags wherever they stand.
    assert "is paid in full: 0.5" in found["incremental/tag_salad"].sentence


def test_a_failed_report_stops_the_run_with_the_findings_in_words(rows, hostile):
    report = try_on(rows, {"correctness": 1.0, "mine": hostile("raises")})
    with pytest.raises(GateFailedError, match="mine: raised ValueError: no such luck") as stopped:
        require_passed(report)
    assert "[mine/exception]" in str(stopped.value)
    assert "smoke_test.waive" in str(stopped.value)


@pytest.mark.parametrize(
    ("name", "finding"),
    [
        ("raises", "exception"),
        ("strings", "not_a_number"),
        ("too_many", "wrong_length"),
        ("infinite", "not_finite"),
        ("dies", "died"),
        ("dice", "not_deterministic"),
        ("meddles", "changes_inputs"),
        ("wants_tests", "missing_column_tests"),
        ("dawdles", "slow"),
        ("raises_on_empty", "exception"),
        ("forks", "blind"),
    ],
)
def test_a_hostile_reward_is_contained_and_named(rows, hostile, name, finding):
    limits = {"seconds_per_completion": 0.02} if name == "dawdles" else {}
    report = try_on(rows[:2], {"mine": hostile(name), "sound": hostile("sound")}, limits)
    found = by_name(report)
    assert f"mine/{finding}" in found, sorted(found)
    assert not report.passed
    assert not [name for name in found if name.startswith("sound/")]


@pytest.mark.slow
def test_a_reward_that_sleeps_is_named_within_its_limit(rows, hostile):
    started = time.monotonic()
    report = try_on(rows[:2], {"mine": hostile("sleeps"), "sound": hostile("sound"), "guard": {"timeout": 2}})
    assert "mine/timed_out" in by_name(report)
    assert time.monotonic() - started < 40


def test_a_declared_random_reward_may_differ(rows, hostile):
    report = try_on(rows[:2], {"correctness": 1.0, "mine": {**hostile("dice"), "random": True}})
    assert "mine/not_deterministic" not in by_name(report)


def test_a_waived_failure_passes_and_stays_in_the_report(rows, hostile):
    waive = [{"name": "mine/*", "reason": "under test"}, {"name": "total/*", "reason": "under test"}]
    report = try_on(rows[:2], {"correctness": 1.0, "mine": hostile("meddles")}, {"waive": waive})
    assert report.passed
    assert by_name(report)["mine/changes_inputs"].waived == "under test"


def test_a_waived_reward_that_cannot_bear_100_kb_is_back_for_the_signal(rows, guide_rewards):
    groups = [DrawnGroup(rows[0], [DrawnCompletion(text, [1], 1, False) for text in ("12", "<answer>72</answer>")])]
    report = try_rewards(
        rows[:1],
        default_contract(),
        RewardsConfig.model_validate({"formatted": guide_rewards["formatted"]}),
        SmokeTestConfig(waive=[{"name": "*", "reason": "under test"}], seconds_per_completion=0.1),
        sample=lambda: groups,
    )
    assert "formatted/timed_out" in by_name(report)
    assert [completion.scores for completion in report.signal.groups[0].completions] == [{"formatted": 0.0}] * 2


def test_a_run_that_rewards_only_the_format_is_told_that_wrong_answers_are_paid(rows):
    report = try_on(rows, {"strict_format": 1.0})
    assert "is paid in full" in by_name(report)["total/gold_plus_one"].sentence


def test_a_length_reward_that_outweighs_correctness_fails_the_total(rows):
    rewards = {"correctness": 0.1, "length": {"weight": 5.0, "options": {"minimum": 5000, "unit": "words"}}}
    report = try_on(rows, rewards)
    assert not report.passed
    assert "total/large" in by_name(report)


@pytest.mark.parametrize(
    "options", [{"minimum": 200}, {"ideal": 300}, {"maximum": 100}, {"minimum": 50, "maximum": 500}]
)
def test_a_small_length_reward_passes(rows, options):
    report = try_on(rows, {"correctness": 2.0, "strict_format": 1.0, "length": {"weight": 0.2, "options": options}})
    assert report.passed, [finding.sentence for finding in report.failures]


def test_a_gold_answer_of_another_kind_is_named(rows):
    contract = build_contract(ContractConfig.model_validate({"answer": "choice"}))
    report = try_on(rows, {}, contract=contract)
    assert "data/no_honest_completion" in by_name(report)


OF_ITS_KIND = {
    "maths": ("number", ["72", "-3", "1920"], {}),
    "qa": ("text", ["Paris", "the Nile", "George Orwell"], {}),
    "summarisation": (
        "text",
        [
            "The council voted on Monday to close the old bridge for two years while it is rebuilt, despite protests.",
            "Scientists found that the ice sheet loses mass three times faster than in the nineties, at its edges.",
            "Fire destroyed the market hall at night, but nobody was hurt, and traders hope to open again soon.",
        ],
        {},
    ),
    "code": (
        "text",
        ["def f(x):\n    return x + 1", "def f(x):\n    return x * 2"],
        {"tests": [["assert f(5) == 6"], ["assert f(5) == 10"]]},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_every_preset_passes_on_rows_of_its_kind(preset):
    answer, golds, extra = OF_ITS_KIND[preset]
    contract = build_contract(ContractConfig.model_validate({"answer": answer}))
    rows = [
        make_row(f"row {n}", {"prompt": contract.messages("?"), "answer": gold, **{k: v[n] for k, v in extra.items()}})
        for n, gold in enumerate(golds)
    ]
    report = try_on(rows, {"preset": preset}, contract=contract)
    assert report.passed, [finding.sentence for finding in report.failures]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "golds"),
    [
        ("choice", ["A", "C", "B"]),
        ("set", ["a, b, c", "red, green"]),
        ("list", ["a, b, c", "1, 2, 3"]),
        ("latex", ["x^2+1", "\\frac{1}{2}", "\\sqrt{2}"]),
        ("auto", ["12", "Paris"]),
    ],
)
def test_the_defaults_pass_on_every_kind_of_answer(kind, golds):
    contract = build_contract(ContractConfig.model_validate({"answer": kind}))
    rows = [make_row(f"row {n}", {"prompt": contract.messages("?"), "answer": g}) for n, g in enumerate(golds)]
    report = try_on(rows, {}, contract=contract)
    assert report.findings == ()
    assert len([line for line in report.table if not line.honest]) > 30


@pytest.mark.parametrize(
    "format_",
    [
        {"type": "json"},
        {"type": "r1"},
        {"type": "xml", "reasoning_tag": "think", "answer_tag": "final"},
        {
            "type": "regex",
            "pattern": r"(?P<reasoning>.+)\nAnswer: (?P<answer>[^\n]+)",
            "template": "{reasoning}\nAnswer: {answer}",
        },
    ],
    ids=["json", "r1", "xml", "regex"],
)
def test_every_format_has_a_corpus_that_the_defaults_pass(rows, format_):
    contract = build_contract(ContractConfig.model_validate({"format": format_}))
    kinds = {sample.kind for sample in build_samples(contract, rows[0], ["5"])}
    assert {"plain", "currency", "gold_plus_one", "shotgun", "large", "empty", "truncated_in_reasoning"} <= kinds
    report = try_on(rows, {"correctness": 2.0, "strict_format": 1.0, "incremental_format": 0.5}, contract=contract)
    assert report.findings == ()

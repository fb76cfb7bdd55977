"""The report on disk: self-contained, safe with hostile text, and the same facts in both files."""

import json

import pytest

from components.smoke_test_rewards.config import SmokeTestConfig
from components.smoke_test_rewards.findings import Finding
from components.smoke_test_rewards.learning_signal import Group, SampledCompletion, measure_signal
from components.smoke_test_rewards.report import RewardFacts, SmokeTestReport, duration, number, write_report
from components.smoke_test_rewards.trap_checks import TableLine

WEIGHTS = {"mine": 1.0}


@pytest.fixture
def report():
    completions = tuple(
        SampledCompletion(text, 5, False, {"mine": score}, score)
        for text, score in (("<script>alert(1)</script>\x00", 1.0), ("\udc80", 0.0))
    )
    signal = measure_signal([Group("row 1", "2 + 2?", "4", completions)], WEIGHTS, temperature=1.0)
    return SmokeTestReport(
        passed=False,
        findings=(
            Finding("mine/currency", "failure", "mine: honest `$18 <b>` scored 0", "Mend it."),
            Finding("mine/large", "warning", "mine: 100 kB is paid"),
            Finding("mine/slow", "failure", "mine: slow", waived="it is a judge"),
        ),
        rewards=(RewardFacts("mine", "mine.py:mine", 1.0, "value", ("answer",), False, True, 2e-5),),
        table=(
            TableLine(
                "currency", "honest, with a currency sign", True, 2, {"mine": 0.0, "total": 0.0}, frozenset({"mine"})
            ),
        ),
        rows=("row 1",),
        contract="0" * 64,
        honest_total=1.0,
        signal=signal,
    )


def test_the_page_is_self_contained_and_escapes_what_models_write(report, tmp_path):
    write_report(report, SmokeTestConfig(), tmp_path)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<script" not in page
    assert "<code>$18 &lt;b&gt;</code>" in page
    assert "http://" not in page
    assert "https://" not in page
    assert "Accepted: it is a judge" in page


def test_the_json_holds_all_facts(report, tmp_path):
    write_report(report, SmokeTestConfig(), tmp_path)
    data = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert data["passed"] is False
    assert [finding["name"] for finding in data["findings"]] == ["mine/currency", "mine/large", "mine/slow"]
    assert data["table"][0]["means"] == {"mine": 0.0, "total": 0.0}
    assert data["signal"]["groups"][0]["spread"] == 0.5
    assert data["signal"]["groups"][0]["completions"][0]["scores"] == {"mine": 1.0}


def test_only_failures_that_nobody_waived_stop_a_run(report):
    assert [finding.name for finding in report.failures] == ["mine/currency"]


@pytest.mark.parametrize(("value", "text"), [(None, "–"), (2.0, "2"), (0.3333, "0.333"), (-0.5, "−0.5"), (0.0, "0")])
def test_numbers_for_people(value, text):
    assert number(value) == text


@pytest.mark.parametrize(("seconds", "text"), [(None, "–"), (2e-5, "20 µs"), (0.0123, "12.3 ms"), (2.5, "2.5 s")])
def test_durations_for_people(seconds, text):
    assert duration(seconds) == text

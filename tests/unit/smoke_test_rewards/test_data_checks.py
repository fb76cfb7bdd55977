"""Columns that rewards ask for; no reward is run here."""

from components.rewards.build import Reward
from components.rewards.guard import FailureKind
from components.smoke_test_rewards.data_checks import WHAT_AND_MEND, check_columns
from components.smoke_test_rewards.traps import Row


def reward(columns=(), optional=()):
    return Reward("mine", 1.0, lambda **_: [], None, tuple(columns), tuple(optional))


def rows(**columns):
    return [Row("row 1", [], "1", {"prompt": [], "answer": "1", **columns})]


def names(*arguments):
    findings, unusable = check_columns(*arguments)
    return {finding.name: finding.level for finding in findings}, unusable


def test_a_missing_column_is_a_failure_and_the_reward_is_not_called():
    assert names([reward(["tests"])], rows()) == ({"mine/missing_column_tests": "failure"}, {"mine"})


def test_a_column_that_is_there_is_no_finding():
    assert names([reward(["answer"])], rows()) == ({}, set())


def test_what_the_trainer_passes_itself_is_no_missing_column():
    assert names([reward(["completion_ids"], ["log_metric"])], rows()) == ({}, set())


def test_the_prompt_column_is_kept_by_the_trainer():
    findings, unusable = check_columns([reward(["prompt"])], rows())
    assert unusable == {"mine"}
    assert "`prompts`" in findings[0].mend


def test_an_optional_column_that_is_not_there_is_a_warning():
    assert names([reward(optional=["sources"])], rows()) == ({"mine/optional_column_sources": "warning"}, set())


def test_an_empty_column_is_a_warning():
    assert names([reward(["tests"])], rows(tests=None)) == ({"mine/empty_column_tests": "warning"}, set())


def test_a_reserved_column_is_a_failure():
    assert names([reward()], rows(log_extra="x"))[0] == {"data/reserved_log_extra": "failure"}


def test_every_way_of_failing_that_the_guard_knows_has_words_and_a_mend():
    assert set(WHAT_AND_MEND) == set(FailureKind)

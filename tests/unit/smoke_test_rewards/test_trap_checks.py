"""How scores of the corpus become findings; no reward is run here."""

from components.smoke_test_rewards.trap_checks import Held, TriedRow, judge_stage, judge_traps, score_table
from components.smoke_test_rewards.traps import Row, Sample

PLAIN = Sample("plain", "honest, plain", "1250", "1250", True, frozenset())
COMMA = Sample(
    "thousands_comma", "honest, with a thousands separator", "1,250", "1,250", True, frozenset(), rephrased=True
)
WRONG = Sample("gold_plus_one", "answer off by one", "1251", "1251", False, frozenset({"value"}))
BLOCKS = Sample("three_answer_blocks", "three answer blocks", "...", "three", False, frozenset({"value", "format"}))
LARGE = Sample("large", "100 kB", "...", "100 kB", False, frozenset({"value", "length"}))
SAMPLES = [PLAIN, COMMA, WRONG, BLOCKS, LARGE]


def tried(**scores):
    return TriedRow(Row("row 1", [], "1250", {}), SAMPLES, scores)


def judge(aspect, *scores, weight=1.0):
    """Findings on the reward alone, by name and level."""
    found = judge_traps([Held("mine", weight, aspect)], [tried(mine=list(scores))])
    return {finding.name: finding for finding in found if finding.name.startswith("mine/")}


def test_a_right_value_reward_has_no_finding():
    assert judge("value", 1, 1, 0, 0, 0) == {}


def test_an_honest_phrasing_that_scores_like_a_wrong_answer_is_named():
    found = judge("value", 1, 0, 0, 0, 0)
    assert list(found) == ["mine/thousands_comma"]
    assert found["mine/thousands_comma"].sentence.startswith(
        "mine: honest `1,250` scored 0, wrong: no more than this trap"
    )


def test_a_trap_paid_like_an_honest_one_is_named_and_does_not_blame_the_honest():
    found = judge("value", 1, 1, 0, 1, 0)
    assert list(found) == ["mine/three_answer_blocks"]
    assert "is paid in full: 1" in found["mine/three_answer_blocks"].sentence


def test_a_reward_answers_for_its_own_aspect_only():
    assert list(judge("format", 1, 1, 1, 1, 1)) == ["mine/blind"]
    assert judge("format", 1, 1, 1, 0, 1) == {}


def test_a_constant_value_reward_is_one_finding():
    assert list(judge("value", 1, 1, 1, 1, 1)) == ["mine/blind"]


def test_a_lower_score_for_a_phrasing_is_a_warning_while_it_beats_every_trap():
    found = judge("value", 1, 0.8, 0, 0, 0)
    assert [(name, finding.level) for name, finding in found.items()] == [("mine/thousands_comma", "warning")]


def test_a_length_reward_may_pay_a_length_trap_as_much_but_not_more():
    assert judge("length", 1, 1, 0, 0, 1)["mine/large"].level == "warning"
    assert judge("length", 1, 1, 0, 0, 2)["mine/large"].level == "failure"
    assert judge("length", 0.2, 1, 0, 0, 0.5) == {}


def test_a_very_long_honest_completion_speaks_for_length_rewards_only():
    long = Sample("4000_words", "honest, long", "...", "1250", True, frozenset(), only="length")
    row = TriedRow(Row("row 1", [], "1250", {}), [PLAIN, long, LARGE], {"mine": [0.1, 1, 1]})
    assert judge_traps([Held("mine", 0.1, "length")], [row])[0].level == "warning"
    value = TriedRow(row.row, row.samples, {"mine": [1, 0, 0]})
    assert judge_traps([Held("mine", 1.0, "value")], [value]) == []


def test_a_reward_that_does_not_compare_with_the_gold_answer_owes_nothing_to_its_phrasings():
    row = tried(mine=[1, 0, 0, 0, 0])
    assert judge_traps([Held("mine", 1.0, "value", reads_gold=False)], [row]) == []


def test_a_negative_weight_turns_more_into_less():
    assert judge("value", 0, 0, 1, 1, 1, weight=-1.0) == {}


def test_weight_zero_only_warns():
    assert judge("value", 1, 0, 0, 0, 0, weight=0.0)["mine/thousands_comma"].level == "warning"


def test_a_reward_that_applies_to_no_honest_completion_is_named():
    assert list(judge("value", None, None, 0, 0, 0)) == ["mine/never_applies"]


def test_the_total_is_held_to_every_trap():
    held = [Held("value", 1.0, "value"), Held("length", 5.0, "length")]
    scores = {"value": [1, 1, 0, 0, 0], "length": [0.2, 0.2, 0.2, 0.2, 1.0]}
    names = [finding.name for finding in judge_traps(held, [tried(**scores)])]
    assert names == ["length/large", "total/large"]


def test_findings_of_many_rows_are_one_with_a_count():
    rows = [tried(mine=[1, 0, 0, 0, 0]), tried(mine=[1, 1, 0, 0, 0])]
    found = judge_traps([Held("mine", 1.0, "value")], rows)
    assert next(f for f in found if f.name == "mine/thousands_comma").sentence.endswith("1 of 2 rows)")


def test_the_table_shows_means_and_flags_with_honest_kinds_first():
    held = [Held("mine", 2.0, "value")]
    rows = [tried(mine=[1, 0, 0, None, 0]), tried(mine=[1, 1, 0, None, 0])]
    lines = {line.kind: line for line in score_table(held, rows, judge_traps(held, rows))}
    assert list(lines)[:2] == ["plain", "thousands_comma"]
    assert lines["thousands_comma"].means == {"mine": 0.5, "total": 1.0}
    assert lines["thousands_comma"].flagged == {"mine", "total"}
    assert lines["three_answer_blocks"].means == {"mine": None, "total": None}


def stage_findings(weights, **scores):
    rewards = [Held("right", 1.0, "value"), Held("form", 1.0, "format")]
    return {finding.name for finding in judge_stage("first", weights, rewards, [tried(**scores)])}


def test_a_stage_that_rewards_form_only_need_not_tell_right_from_wrong():
    assert stage_findings({"form": 1.0}, right=[1, 1, 0, 0, 0], form=[1, 1, 1, 0, 1]) == set()


def test_a_stage_is_held_to_the_traps_of_what_it_rewards():
    assert stage_findings({"form": 1.0}, right=[1, 1, 0, 0, 0], form=[1, 1, 1, 1, 1]) == {
        "stage-first/three_answer_blocks"
    }
    assert stage_findings({"right": 0.5, "form": -1.0}, right=[1, 1, 0, 0, 0], form=[1, 1, 0, 0, 0]) == {
        "stage-first/gold_plus_one",
        "stage-first/three_answer_blocks",
        "stage-first/large",
    }

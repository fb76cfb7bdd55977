"""The corpus: what it holds, that the contract agrees with it, and that it fits the rows."""

from fractions import Fraction

import pytest

from components.contract import build_contract, default_contract
from components.contract.config import ContractConfig
from components.smoke_test_rewards.traps import Row, build_samples, number_text

CONTRACT = default_contract()


def corpus(gold, contract=CONTRACT, others=("7", "99"), **columns):
    row = Row("row 1", contract.messages("How many?"), gold, {"answer": gold, **columns})
    return {sample.kind: sample for sample in build_samples(contract, row, others)}


@pytest.mark.parametrize("gold", ["1250", "-3", "0.75", "18", "1,250"])
def test_the_contract_agrees_with_every_label(gold):
    samples = corpus(gold)
    for sample in samples.values():
        answer = CONTRACT.read_answer(sample.text)
        right = answer is not None and CONTRACT.equal(answer, gold)
        assert (right and CONTRACT.check(sample.text).strict) == sample.honest, sample.kind
        assert right == ("value" not in sample.broken), sample.kind
        assert CONTRACT.check(sample.text).strict == ("format" not in sample.broken), sample.kind


def test_the_plain_honest_completion_comes_first():
    assert next(iter(corpus("12"))) == "plain"


@pytest.mark.parametrize(
    ("gold", "kind", "shown"),
    [
        ("1250", "thousands_comma", "1,250"),
        ("18", "currency", "$18"),
        ("5", "trailing_zeros", "5.00"),
        ("72", "boxed", "\\boxed{72}"),
        ("-7", "unicode_minus", "\N{MINUS SIGN}7"),
        ("0.75", "latex_fraction", "\\frac{3}{4}"),
    ],
)
def test_honest_phrasings_of_a_number(gold, kind, shown):
    assert corpus(gold)[kind].shown == shown
    assert corpus(gold)[kind].honest


def test_a_small_number_has_no_thousands_separator():
    assert "thousands_comma" not in corpus("18")


def test_the_traps_the_guides_rewards_fall_for_are_there():
    wanted = {"three_answer_blocks", "placeholder_echoed", "empty_tags", "tag_salad", "no_format", "shotgun"}
    assert wanted <= {kind for kind, sample in corpus("12").items() if not sample.honest}


def test_the_placeholder_is_the_prompts_own():
    contract = build_contract(
        ContractConfig(system_prompt="Write <reasoning>\nhere you think\n</reasoning>\n<answer>\na number\n</answer>")
    )
    assert "here you think" in corpus("12", contract)["placeholder_echoed"].text


def test_large_completions_are_100_kb():
    assert all(len(corpus("12")[kind].text) > 100_000 for kind in ("large", "large_white_space", "large_openings"))


def test_length_and_style_traps_say_so():
    samples = corpus("12")
    assert "length" in samples["empty"].broken
    assert "style" in samples["keyword_stuffing"].broken
    assert "length" not in samples["gold_plus_one"].broken


def test_the_rows_own_solution_is_the_reasoning():
    assert "half of 24" in corpus("12", solution="half of 24 is 12")["plain"].text


def test_a_solution_that_breaks_the_format_is_not_used():
    assert "<answer>12" not in corpus("12", solution="so <answer>12</answer>")["plain"].text


def test_another_rows_answer_is_not_one_that_is_right_here():
    assert corpus("12", others=("12.0", "40"))["answer_of_another_row"].shown == "40"


def test_a_row_whose_gold_the_contract_does_not_read_has_no_corpus():
    assert corpus("...") == {}


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (Fraction(5), "5"),
        (Fraction(-3, 4), "-0.75"),
        (Fraction(1, 3), "1/3"),
        (Fraction(1, 1000), "0.001"),
        (Fraction(10**25), "1" + "0" * 25),
    ],
)
def test_numbers_are_written_exactly(number, text):
    assert number_text(number) == text

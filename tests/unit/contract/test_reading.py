"""The lenient reading: what a model says outside the format, for measuring only."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.contract import default_contract

CONTRACT = default_contract()


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("<answer>12</answer> or 13", "12"),
        ("7 + 5 = 12", "12"),
        ("The answer is 12.", "12"),
        ("The answer is $1,250.50. That was 3 steps.", "$1,250.50"),
        ("The Answer is: 12\nI used 3 steps", "12"),
        ("The answer is 10. No wait, the answer is 12.", "12"),
        ("First \\boxed{10}, then \\boxed{12}. The answer is 13.", "12"),
        ("\\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
        ("\\boxed{", None),
        ("\\boxed{...} so 12", "12"),
        ("Janet makes $18 every day", "$18"),
        ("a loss of -7", "-7"),
        ("from 5-7", "7"),
        ("it is −7", "−7"),
        ("1,250 and then 1,300.", "1,300"),
        ("3/4", "3/4"),
        ("grew by 25%", "25%"),
        ("earns 12 thousand", "12 thousand"),
        ("<reasoning>7+5\n</reasoning>\n<answer>12", "12"),
        ("<answer>12</answer><answer>13</answer>", "13"),
        ("<answer>[Final answer]</answer>", None),
        ("the answer is [Final answer], I mean 12", "[Final answer], I mean 12"),
        ("no idea", None),
        ("", None),
        ("The answer is</answer> 12", "12"),
        ("answer is " + "x" * 5000, "x" * 990),
    ],
)
def test_lenient_reading(text: str, read: str | None) -> None:
    found = CONTRACT.read_answer(text, lenient=True)
    assert found == read if read is None or len(read) < 900 else str(found).startswith("x" * 900)


def test_lenient_reading_finds_a_number_far_from_the_end() -> None:
    assert CONTRACT.read_answer("12 apples" + " and so on" * 50_000, lenient=True) == "12"


@given(st.text(max_size=200))
@settings(max_examples=200, deadline=None)
def test_an_answer_block_always_wins(text: str) -> None:
    strict = CONTRACT.read_answer(text)
    lenient = CONTRACT.read_answer(text, lenient=True)
    assert strict is None or lenient == strict
    assert lenient is None or lenient.strip() == lenient

"""The number reader: total, exact, idempotent, and the same value for every way of writing a number."""
# ruff: noqa: SIM905  (words in a string)

from fractions import Fraction
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.contract import build_contract, default_contract
from components.contract.characters import plain_characters, without_end_tokens
from components.contract.config import AnswerConfig, ContractConfig
from components.contract.number import format_number, read_number
from components.contract.words import SCALES

CONTRACT = default_contract()
# Pieces that answers are made of, so that random texts come near to numbers.
PIECES = st.sampled_from(
    r"""12 1,250 1.5 .5 7 - − + $ € % ( ) [ ] { } \boxed{ \frac{ \text{ \sqrt{ \$ \, {,} ** ` = x : / ^ 2 and or
    thousand half dozen minus at least answer is ½ ² １ 000 e3 . , ' _ <|im_end|> " ~ ! ? — –""".split()
)
NEAR_NUMBERS = st.lists(st.one_of(PIECES, st.just(" "), st.just("\n")), max_size=12).map("".join)
TEXTS = st.one_of(st.text(max_size=60), NEAR_NUMBERS)
INTEGERS = st.integers(min_value=-(10**15), max_value=10**15)


@given(TEXTS)
@settings(max_examples=400, deadline=None)
def test_reading_never_raises_and_is_stable(text: str) -> None:
    value = read_number(text)
    assert value == read_number(text)
    if value is not None:
        assert isinstance(value, int) or (isinstance(value, Fraction) and value.denominator > 1)
        assert read_number(format_number(value)) == value


@given(TEXTS)
@settings(max_examples=200, deadline=None)
def test_normalising_twice_changes_nothing(text: str) -> None:
    once = CONTRACT.normalise(text)
    assert CONTRACT.normalise(once) == once
    plain = plain_characters(text)
    assert plain_characters(plain) == plain
    stripped = without_end_tokens(text)
    assert without_end_tokens(stripped) == stripped


@given(TEXTS)
@settings(max_examples=200, deadline=None)
def test_white_space_and_an_end_token_around_change_nothing(text: str) -> None:
    assert read_number(f" \n{text}\t ") == read_number(text)
    assert read_number(f"{text}<|im_end|>") == read_number(text)


def grouped(value: int, separator: str) -> str:
    return f"{value:,}".replace(",", separator)


WRITINGS = {
    "plain": str,
    "comma": lambda n: f"{n:,}",
    "space": lambda n: grouped(n, " "),
    "thin space": lambda n: grouped(n, "\u202f"),
    "underscore": lambda n: grouped(n, "_"),
    "apostrophe": lambda n: grouped(n, "'"),
    "latex comma": lambda n: grouped(n, "{,}"),
    "latex thin space": lambda n: grouped(n, "\\,"),
    "dollar": lambda n: f"-${-n:,}" if n < 0 else f"${n:,}",
    "dollar before the sign": lambda n: f"${n:,}",
    "euro behind": lambda n: f"{n} €",
    "currency code": lambda n: f"USD {n}",
    "unit": lambda n: f"{n} apples",
    "percent": lambda n: f"{n}%",
    "decimals": lambda n: f"{n}.000",
    "full stop": lambda n: f"{n}.",
    "unicode minus": lambda n: str(n).replace("-", "−"),
    "full width": lambda n: str(n).translate({ord("0") + i: 0xFF10 + i for i in range(10)}),
    "arabic-indic": lambda n: str(n).translate({ord("0") + i: 0x0660 + i for i in range(10)}),
    "boxed": lambda n: f"\\boxed{{{n}}}",
    "boxed in math": lambda n: f"$\\boxed{{{n:,}}}$",
    "math": lambda n: f"${n}$",
    "latex unit": lambda n: f"{n}\\text{{ cm}}",
    "bold": lambda n: f"**{n}**",
    "label": lambda n: f"Answer: {n}",
    "sentence": lambda n: f"The answer is {n}.",
    "assignment": lambda n: f"x = {n}",
    "fraction": lambda n: f"\\frac{{{2 * n}}}{{2}}",
    "slash": lambda n: f"{3 * n}/3",
    "end token": lambda n: f"{n}<|im_end|>",
    "exponent": lambda n: f"{n}e0",
    "power of ten": lambda n: f"{n} \\times 10^{{0}}",
    "word for minus": lambda n: f"minus {-n}" if n < 0 else str(n),
    "equation": lambda n: f"{n - 1} + 1 = {n}",
}


@pytest.mark.parametrize("writing", WRITINGS.values(), ids=WRITINGS.keys())
@given(value=INTEGERS)
@settings(max_examples=12, deadline=None)
def test_every_way_of_writing_an_integer_is_read_back(writing: object, value: int) -> None:
    text = writing(value)  # type: ignore[operator]
    assert read_number(text) == value, text
    assert CONTRACT.equal(text, str(value))
    assert not CONTRACT.equal(text, str(value + 1))


@pytest.mark.parametrize(("word", "scale"), SCALES.items())
def test_scale_words_multiply(word: str, scale: int) -> None:
    assert read_number(f"12 {word}") == 12 * scale
    assert read_number(f"-1.5 {word}") == Fraction(-3 * scale, 2)
    assert read_number(f"$12 {word} in all") == 12 * scale
    assert not CONTRACT.equal(f"12 {word}", "12")


@given(INTEGERS, st.integers(min_value=1, max_value=99))
@settings(max_examples=100, deadline=None)
def test_fractions_are_exact(numerator: int, denominator: int) -> None:
    value = Fraction(numerator, denominator)
    sign, size = ("-", -numerator) if numerator < 0 else ("", numerator)
    for text in (f"{numerator}/{denominator}", f"{sign}\\frac{{{size}}}{{{denominator}}}"):
        assert read_number(text) == value
    whole, rest = divmod(abs(value), 1)
    if whole and rest:
        text = f"{sign}{whole} {rest.numerator}/{rest.denominator}"
        assert read_number(text) == value, text


@given(st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**9), max_value=10**9, places=6))
@settings(max_examples=100, deadline=None)
def test_decimals_are_exact(value: object) -> None:
    assert read_number(f"{value:f}") == Fraction(str(value))


@given(st.integers(min_value=0, max_value=999_999))
@settings(max_examples=100, deadline=None)
def test_numbers_in_words(value: int) -> None:
    ones = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen".split()
    ones += "sixteen seventeen eighteen nineteen".split()
    tens = "- - twenty thirty forty fifty sixty seventy eighty ninety".split()

    def below_1000(n: int) -> str:
        words = [f"{ones[n // 100]} hundred"] if n >= 100 else []
        rest = n % 100
        if rest >= 20:
            words.append(tens[rest // 10] + (f"-{ones[rest % 10]}" if rest % 10 else ""))
        elif rest or not n:
            words.append(ones[rest])
        return " and ".join(words)

    thousands, rest = divmod(value, 1000)
    text = f"{below_1000(thousands)} thousand" if thousands else ""
    text = f"{text} {below_1000(rest)}".strip() if rest or not thousands else text
    assert read_number(text) == value, text
    assert read_number(f"The answer is {text}.") == value


@pytest.mark.parametrize(("percent", "expected"), [("drop", 25), ("fraction", Fraction(1, 4)), ("refuse", None)])
def test_percent_means_what_is_configured(
    percent: Literal["drop", "fraction", "refuse"], expected: int | Fraction | None
) -> None:
    for text in ("25%", "25 %", "25\\%", "25 percent", "25 per cent", "25% of them"):
        assert read_number(text, percent) == expected, text
    assert read_number("25", percent) == 25


def test_tolerance_is_absolute_or_relative_and_off_by_default() -> None:
    absolute = build_contract(ContractConfig(answer=AnswerConfig(tolerance=0.01)))
    assert absolute.equal("3.14", "3.15")
    assert not absolute.equal("3.14", "3.1501")
    relative = build_contract(ContractConfig(answer=AnswerConfig(relative_tolerance=0.01)))
    assert relative.equal("101", "100")
    assert not relative.equal("101.1", "100")
    assert relative.equal("-101", "-100")
    assert not CONTRACT.equal("3.14", "3.1400000001")

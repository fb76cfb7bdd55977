"""When questions are the same, nearly the same, or only look alike."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.prepare_dataset.overlap import NearIndex, _run_texts, numbers_key, text_key, tokens_of

TOM = (
    "Tom has 15 apples in a wooden basket and buys 7 more at the market on Sunday morning. On the way home he gives 4 "
    "of them to his neighbour Ann, who wants to bake a pie. How many apples does Tom have left in the end?"
)


def same(left: str, right: str) -> bool:
    return text_key(tokens_of(left)) == text_key(tokens_of(right))


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("How many apples?", "how many  APPLES"),
        ("Tom's 3 apples", "Tom’s 3 apples"),
        ("“Five” apples, please.", '"five" apples please'),
        ("It costs 1,200,000 dollars", "it costs 1200000 dollars"),
        ("3+5 = ?", "3 + 5 ="),
        ("5kg of rice", "5 kg of rice"),
        ("ﬁve cats", "five cats"),
    ],
)
def test_case_spaces_marks_and_quotes_do_not_tell_questions_apart(left: str, right: str) -> None:
    assert same(left, right)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("3 + 5", "3 - 5"),
        ("(3 + 4) * 2", "3 + 4 * 2"),
        ("3.5 kg", "35 kg"),
        ("12 3", "123"),
        ("1, 2, 3", "1, 23"),
        ("$5", "5"),
        ("5% of 20", "5 of 20"),
        ("no cat", "not cat"),
    ],
)
def test_signs_numbers_and_words_do(left: str, right: str) -> None:
    assert not same(left, right)


def find(indexed: list[str], question: str, similarity: float = 0.6) -> int | None:
    copy = NearIndex(indexed, similarity).find(question)
    return None if copy is None else copy.position


@pytest.mark.parametrize(
    "copy",
    [
        TOM,
        TOM.replace("wooden ", ""),
        TOM.replace("neighbour", "friend"),
        TOM.replace("4", "four").replace("7", "seven"),
        TOM + " Explain.",
        TOM.replace("Sunday", "Monday").replace("Ann", "Eve"),
    ],
)
def test_a_slightly_reworded_question_is_a_near_copy(copy: str) -> None:
    assert find(["What is 2 + 2?", TOM, "How old is Ann?"], copy) == 1


@pytest.mark.parametrize(
    "other",
    [
        TOM.replace("15", "16"),
        TOM.replace("15", "7").replace("buys 7", "buys 15"),
        TOM.replace("4", "5").replace("7", "9"),
        "Ann has 15 pears. Bob has 7 more than she, and Eve 4 fewer than Bob. How many pears does Eve have?",
    ],
)
def test_the_same_template_with_other_numbers_is_not(other: str) -> None:
    assert find([TOM], other) is None


def test_boilerplate_around_other_content_is_not_a_near_copy() -> None:
    frame = "Sort these words in alphabetical order and write them in one line, separated by commas, nothing else: {}."
    words = [
        f"{a} {b} {c} {d}" for a, b, c, d in zip("abcdefghij", "klmnopqrst", "uvwxyzabcd", "efghijklmn", strict=True)
    ]
    index = NearIndex([frame.format(text) for text in words], 0.6)
    assert index.find(frame.format("pear fig lime plum")) is None
    assert index.find(frame.format(words[3])).position == 3


def brute_force(indexed: list[str], question: str, similarity: float) -> int | None:
    """The definition in the module's docstring, without any shortcut."""
    runs = [set(_run_texts(tokens_of(text))) for text in indexed]
    own = set(_run_texts(tokens_of(question)))
    weights = {run: np.log((len(indexed) + 10) / (1 + sum(run in other for other in runs))) for run in own.union(*runs)}
    best, found = similarity - 1e-9, None
    for position, other in enumerate(runs):
        if numbers_key(tokens_of(indexed[position])) == numbers_key(tokens_of(question)):
            value = sum(weights[run] for run in own & other) / sum(weights[run] for run in own | other)
            if value > best + 1e-9:
                best, found = value, position
    return found


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000))
def test_the_search_misses_nothing_that_comparing_all_pairs_finds(seed: int) -> None:
    draw = random.Random(seed)
    words = ["tom", "ann", "has", "gives", "apples", "pears", "3", "5", "more", "to", "how", "many", "left", "red"]

    def text() -> str:
        return " ".join(draw.choice(words) for _ in range(draw.randint(1, 9)))

    indexed = [text() for _ in range(40)] + ["how many red apples has tom"] * 2 + ["tom has apples"] * 20
    index = NearIndex(indexed, 0.5)
    for _ in range(10):
        base = draw.choice(indexed).split()
        base[draw.randrange(len(base))] = draw.choice(words)
        question = " ".join(base)
        copy = index.find(question)
        assert (copy.position if copy else None) == brute_force(indexed, question, 0.5)

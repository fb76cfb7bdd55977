"""Equality of every kind of answer, and which golds each kind accepts."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from components.contract import Contract, build_contract
from components.contract.config import ContractConfig


def contract(kind: str, **options: Any) -> Contract:
    return build_contract(ContractConfig.model_validate({"answer": {"kind": kind, **options}}))


KINDS: dict[str, list[tuple[str, str, bool]]] = json.loads(
    (Path(__file__).parent / "kinds.json").read_text(encoding="utf-8")
)


@pytest.mark.parametrize(
    ("kind", "answer", "gold", "equal"),
    [(kind, *case) for kind, cases in KINDS.items() for case in cases],
)
def test_answers_of_a_kind(kind: str, answer: str, gold: str, equal: bool) -> None:
    assert contract(kind).equal(answer, gold) is equal


def test_text_can_mind_the_case() -> None:
    minding = contract("text", case_sensitive=True)
    assert minding.equal("Paris.", "Paris")
    assert not minding.equal("paris", "Paris")


def test_choices_are_the_letters_offered() -> None:
    four = contract("choice", choices="ABCD")
    assert four.equal("D", "D")
    assert not four.gold_is_readable("E")
    assert not four.equal("E", "E")


GOLDS = {
    "number": {
        "accepted": ["12", "1,250", "$18", "-7", "3/4", r"\frac{3}{4}", r"\sqrt{2}", "12 thousand", "#### 12"],
        "refused": ["", "  ", "Paris", "nan", "12 or 13", "5-7", "[Final answer]", "...", "x", "1.250,50", "see above"],
    },
    "choice": {"accepted": ["B", "(B)"], "refused": ["Z", "", "A or B"]},
    "set": {"accepted": ["{1,2}", "{}"], "refused": ["", "{1,,2}", "{1, 2"]},
    "text": {"accepted": ["Paris"], "refused": ["", "...", "your answer here"]},
    "latex": {"accepted": ["x^2", "12"], "refused": ["", "nan"]},
    "auto": {"accepted": ["Paris", "12", "B"], "refused": ["nan", "", "inf"]},
}


@pytest.mark.parametrize("kind", GOLDS)
def test_golds_of_a_kind(kind: str) -> None:
    judge = contract(kind)
    for gold in GOLDS[kind]["accepted"]:
        assert judge.gold_is_readable(gold), gold
        if gold not in ("x^2",):
            assert judge.equal(gold, gold), gold
    for gold in GOLDS[kind]["refused"]:
        assert not judge.gold_is_readable(gold), gold


def test_no_answer_is_never_right() -> None:
    assert not contract("number").equal(None, "12")


def test_latex_that_never_ends_is_stopped_and_the_next_is_judged() -> None:
    judge = contract("latex")
    assert not judge.equal(r"9^{999!}", "5")
    assert judge.equal(r"x^2+2x+1", r"(x+1)^2")


def test_latex_is_compared_in_another_thread_too() -> None:
    verdicts: list[bool] = []
    judge = contract("latex")
    thread = threading.Thread(target=lambda: verdicts.append(judge.equal(r"\sqrt{12}", r"2\sqrt{3}")))
    thread.start()
    thread.join()
    assert verdicts == [True]


def test_sets_with_many_values_are_compared() -> None:
    many = ", ".join(str(n) for n in range(1500))
    judge = contract("set")
    assert judge.equal(f"{{{many}}}", f"{{{many}}}")
    assert not judge.equal(f"{{{many}}}", f"{{{many}, 1500, 1501, 1502}}")
    assert not judge.equal(", ".join("x" + str(n) for n in range(1500)), many)

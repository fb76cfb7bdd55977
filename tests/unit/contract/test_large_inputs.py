"""Any text of up to a megabyte is answered; the cap of a minute is far above what a linear scan needs.

A catastrophic pattern or a number parsed whole would run for minutes, so the generous cap still tells them apart.
"""

import pytest

from components.contract import Contract, build_contract
from components.contract.config import ContractConfig

SIZE = 1_000_000
PIECES = {
    "open answer": "<answer>",
    "answers": "<answer>12</answer>",
    "closing": "</reasoning>",
    "digits": "9",
    "groups": "1,000,",
    "spaced groups": "1 000 ",
    "blanks": " ",
    "braces": "{}",
    "boxes": "\\boxed{",
    "quotes": '\\"',
    "stars": "**a",
    "underscores": "_a",
    "said": "the answer is ",
    "end tokens": "</s> ",
    "equations": "1=",
    "invisible": "\u200b",
    "emoji": "🍎",
}
CONTRACTS = {
    "xml": ContractConfig(),
    "r1": ContractConfig.model_validate({"format": "r1"}),
    "json": ContractConfig.model_validate({"format": "json"}),
    "regex": ContractConfig.model_validate(
        {
            "format": {
                "type": "regex",
                "pattern": r"(?P<reasoning>(\w|\w\w|.)*)\n#### (?P<answer>.+)",
                "answer_pattern": r"(\w+\s?)+#(?P<answer>\d+)$",
                "template": "{reasoning}\n#### {answer}",
            }
        }
    ),
    **{kind: ContractConfig.model_validate({"answer": kind}) for kind in ("latex", "text", "choice", "set", "auto")},
}


def contract(name: str) -> Contract:
    return build_contract(CONTRACTS[name])


@pytest.mark.timeout(60)
@pytest.mark.parametrize("piece", PIECES.values(), ids=PIECES.keys())
def test_a_megabyte_in_an_answer_block_is_judged(piece: str) -> None:
    text = (piece * (SIZE // len(piece) + 1))[:SIZE]
    judge = contract("xml")
    completion = judge.write("because", text)
    assert not judge.check(text).strict
    judge.read_answer(text, lenient=True)
    read = judge.read_answer(completion)
    assert read is None or not judge.equal(read, "12")
    assert not judge.equal("12", text)
    assert not judge.gold_is_readable(text)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["r1", "json", "regex"])
@pytest.mark.parametrize("piece", ["{", '{"answer":', "\\boxed{", "<think>", "word "])
def test_a_megabyte_is_judged_in_every_format(name: str, piece: str) -> None:
    text = (piece * (SIZE // len(piece) + 1))[:SIZE]
    judge = contract(name)
    assert not judge.check(text).strict
    judge.check(judge.write("because", text))
    judge.read_answer(text, lenient=True)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["latex", "text", "choice", "set", "auto"])
def test_a_megabyte_is_compared_in_every_kind(name: str) -> None:
    judge = contract(name)
    for piece in ("(", "a, ", '"', "**", "\\frac{", "B or "):
        text = (piece * (SIZE // len(piece) + 1))[:SIZE]
        assert not judge.equal(text, "12")
        assert not judge.equal("12", text)
        judge.normalise(text)


def test_padding_does_not_hide_a_number() -> None:
    judge = contract("xml")
    assert judge.equal(" " * SIZE + "12" + "\n" * SIZE, "12")
    assert not judge.equal("12." + "0" * SIZE, "12")  # more digits than a number has

"""Cases of reading and comparing, a line each: the pinned ones, and more of each kind, verdicts worked out by hand."""

import json
from pathlib import Path
from typing import Any

import pytest

from components.contract import default_contract
from components.contract.placeholders import has_content

HERE = Path(__file__).parent
CONTRACT = default_contract()


def cases(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (HERE / name).read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("case", cases("completions.jsonl"), ids=lambda case: case["id"])
def test_pinned_completion(case: dict[str, Any]) -> None:
    read = CONTRACT.read_answer(case["completion"])
    assert CONTRACT.check(case["completion"]).strict == case["strict_format"], case["why"]
    assert read == case["answer_read"], case["why"]
    assert CONTRACT.equal(read, case["gold"]) == case["correct"], case["why"]


@pytest.mark.parametrize("case", cases("more_completions.jsonl"), ids=lambda case: case["id"])
def test_completion(case: dict[str, Any]) -> None:
    found = CONTRACT.check(case["completion"])
    assert found.strict == case["strict_format"], case["why"]
    assert CONTRACT.read_answer(case["completion"]) == case["answer_read"], case["why"]
    assert found.lenient == (case["answer_read"] is not None), case["why"]
    assert sorted(found.reasons) == sorted(case["reasons"]), case["why"]


@pytest.mark.parametrize("case", cases("answers.jsonl"), ids=lambda case: case["id"])
def test_answer_against_gold(case: dict[str, Any]) -> None:
    assert CONTRACT.equal(case["answer"], case["gold"]) == case["equal"], f"{case['answer']!r} against {case['gold']!r}"


def test_every_answer_is_read_as_written_from_a_strict_completion() -> None:
    for case in cases("answers.jsonl"):
        completion = CONTRACT.write("because", case["answer"])
        read = CONTRACT.read_answer(completion)
        if case["answer"] == "answer" or not has_content(case["answer"]):
            assert read is None, case
        elif "</answer>" in case["answer"]:
            assert not CONTRACT.check(completion).strict, case
        else:
            assert CONTRACT.check(completion).strict, case
            assert read == case["answer"].strip(), case

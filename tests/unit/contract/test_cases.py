"""The pinned cases of the XML format and of number answers: what is strict, what is read, what is right."""

import json
from pathlib import Path
from typing import Any

import pytest

from components.contract import default_contract

CASES = [json.loads(line) for line in (Path(__file__).parent / "completions.jsonl").read_text().splitlines()]
CONTRACT = default_contract()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_case_is_judged_as_pinned(case: dict[str, Any]) -> None:
    read = CONTRACT.read_answer(case["completion"])
    assert CONTRACT.check(case["completion"]).strict == case["strict_format"], case["why"]
    assert read == case["answer_read"], case["why"]
    assert CONTRACT.equal(read, case["gold"]) == case["correct"], case["why"]

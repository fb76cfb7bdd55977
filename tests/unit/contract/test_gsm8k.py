"""GSM8K: every gold answer is readable, an honest completion is right, and gold + 1 is wrong."""

import json
from pathlib import Path

import pytest

from components.contract import default_contract
from components.contract.number import read_number

SAMPLE = Path(__file__).parent / "gsm8k_sample.jsonl"
DATA = Path(__file__).parents[4] / "shared" / "data" / "gsm8k"
CONTRACT = default_contract()


def check_rows(lines: list[str]) -> None:
    for line in lines:
        row = json.loads(line)
        solution, gold = row["answer"].rsplit("####", 1)
        gold = gold.strip()
        assert CONTRACT.gold_is_readable(gold), gold
        value = read_number(gold)
        assert value is not None
        honest = CONTRACT.write(solution.strip(), gold)
        compliance = CONTRACT.check(honest)
        assert compliance.strict, honest
        assert compliance.reasons == ()
        assert CONTRACT.equal(CONTRACT.read_answer(honest), gold), gold
        for wrong in (str(value + 1), f"${value + 1:,}", f"{value + 1} apples"):
            assert not CONTRACT.equal(CONTRACT.read_answer(CONTRACT.write(solution, wrong)), gold), (wrong, gold)


def test_sample_rows() -> None:
    lines = SAMPLE.read_text(encoding="utf-8").splitlines()
    assert len(lines) == 50
    check_rows(lines)


@pytest.mark.parametrize(("name", "rows"), [("train.jsonl", 7473), ("test.jsonl", 1319)])
def test_all_rows(name: str, rows: int) -> None:
    path = DATA / name
    if not path.exists():
        pytest.skip("the whole of GSM8K is not on this machine")
    lines = path.read_text(encoding="utf-8").splitlines()
    assert len(lines) == rows
    check_rows(lines)

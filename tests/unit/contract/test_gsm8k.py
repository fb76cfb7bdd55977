"""GSM8K: every gold answer is readable, an honest completion is right, and gold + 1 is wrong."""

import json
from pathlib import Path

import pytest

from components.contract import default_contract
from components.contract.number import read_number
from components.rewards import build_rewards
from components.rewards.config import RewardsConfig

SAMPLE = Path(__file__).parent / "gsm8k_sample.jsonl"
DATA = Path(__file__).parents[4] / "shared" / "data" / "gsm8k"
CONTRACT = default_contract()


REWARDS = build_rewards(
    RewardsConfig.model_validate({"correctness": 2.0, "strict_format": 1.0, "incremental_format": 0.5}), CONTRACT
)


def scores(completions: list[str], golds: list[str]) -> dict[str, list[float]]:
    """Each default reward's scores, called as a trainer calls it."""
    chats = [[{"role": "assistant", "content": text}] for text in completions]
    return {r.name: r.function(prompts=[None] * len(chats), completions=chats, answer=golds) for r in REWARDS}


def check_rewards(lines: list[str]) -> None:
    """An honest completion gets full marks; gold + 1 gets none for correctness."""
    rows = [json.loads(line)["answer"].rsplit("####", 1) for line in lines]
    golds = [gold.strip() for _, gold in rows]
    honest = [CONTRACT.write(solution.strip(), gold) for (solution, _), gold in zip(rows, golds, strict=True)]
    off_by_one = [
        CONTRACT.write(solution.strip(), str((read_number(gold) or 0) + 1))
        for (solution, _), gold in zip(rows, golds, strict=True)
    ]
    assert all(set(found) == {1.0} for found in scores(honest, golds).values())
    assert set(scores(off_by_one, golds)["correctness"]) == {0.0}


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
    check_rewards(lines)


@pytest.mark.parametrize(("name", "rows"), [("train.jsonl", 7473), ("test.jsonl", 1319)])
def test_all_rows(name: str, rows: int) -> None:
    path = DATA / name
    if not path.exists():
        pytest.skip("the whole of GSM8K is not on this machine")
    lines = path.read_text(encoding="utf-8").splitlines()
    assert len(lines) == rows
    check_rows(lines)
    check_rewards(lines)

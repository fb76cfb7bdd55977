"""Rows and reward files that the tests of this room share."""

from pathlib import Path

import pytest

from components.contract import default_contract
from components.smoke_test_rewards.rows import make_row

HERE = Path(__file__).parent
GOLDS = ("72", "-3", "1920", "0.5")


@pytest.fixture
def rows():
    contract = default_contract()
    return [
        make_row(
            f"rows.jsonl:{number}",
            {
                "prompt": contract.messages(f"What is {gold} plus nothing?"),
                "question": f"What is {gold} plus nothing?",
                "answer": gold,
                "solution": f"{gold} + 0 = {gold}",
            },
        )
        for number, gold in enumerate(GOLDS, start=1)
    ]


@pytest.fixture
def guide_rewards():
    path = HERE / "guide_rewards.py"
    return {
        "correctness": {"use": f"{path}:correctness", "aspect": "value"},
        "formatted": {"use": f"{path}:formatted", "aspect": "format"},
        "incremental": {"use": f"{path}:incremental", "aspect": "format"},
    }


@pytest.fixture
def hostile():
    return lambda name: {"use": f"{HERE / 'hostile_rewards.py'}:{name}", "aspect": "value"}

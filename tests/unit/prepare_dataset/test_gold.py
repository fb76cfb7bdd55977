"""Gold extraction presets."""

import pytest

from components.prepare_dataset.config import GoldConfig
from components.prepare_dataset.gold import make_extract


@pytest.mark.parametrize(
    ("gold", "text", "expected"),
    [
        ({"preset": "plain"}, " 42 ", ("42", None)),
        ({"preset": "gsm8k"}, "6*7 = <<6*7=42>>42\n#### 42", ("42", "6*7 = 42")),
        ({"preset": "gsm8k"}, "#### 1,234", ("1,234", None)),
        ({"preset": "gsm8k"}, "no mark", (None, None)),
        ({"preset": "gsm8k"}, "so\n####  ", (None, "so")),
        ({"preset": "gsm8k"}, "#### 1\n#### 2", ("2", "#### 1")),
        ({"preset": "boxed"}, r"so \boxed{\frac{1}{2}}.", (r"\frac{1}{2}", r"so \boxed{\frac{1}{2}}.")),
        ({"preset": "boxed"}, r"\boxed{1} then \boxed{2}", ("2", r"\boxed{1} then \boxed{2}")),
        ({"preset": "boxed"}, r"\boxed{1", (None, None)),
        ({"preset": "boxed"}, "nothing", (None, None)),
        ({"preset": "regex", "pattern": r"Answer: (\S+)"}, "Answer: 1 Answer: 2", ("2", "Answer: 1")),
        ({"preset": "regex", "pattern": r"Answer: (\S+)"}, "none", (None, None)),
    ],
)
def test_each_preset_finds_gold_and_solution_or_nothing(gold: dict, text: str, expected: tuple) -> None:
    assert make_extract(GoldConfig(**gold))(text) == expected

"""What the judgement refuses, warns of and lets pass, from numbers alone."""

from types import SimpleNamespace
from typing import Any

import pytest

from components.merge_lora.config import MergeConfig
from components.merge_lora.judging import find_failures, find_warnings


def written(**changes: Any) -> Any:
    values = {
        "dtype": "bfloat16",
        "not_finite": [],
        "changed_elements": 90,
        "update_norm": 1.5,
        "unchanged": [],
    }
    return SimpleNamespace(**values | changes)


def measured(**changes: Any) -> dict[str, Any]:
    values = {
        "loading": {"missing_keys": [], "unexpected_keys": [], "dtype": "bfloat16"},
        "weights": {"equal": 14, "apart": 0, "largest": 0.0, "tensor": None, "expected": 14},
        "logits": {"rms": 0.01, "largest": 0.3, "finite": True},
        "effect": {"rms": 0.4, "largest": 3.0, "finite": True},
        "greedy": [{"tokens": 16, "agree": 16, "margin": None}],
        "tokenizer": {"tokens": 100, "same_size": True, "same_special_tokens": True, "same_encoding": True},
        "template": [{"template": "default", "case": "brings none", "same": True}],
    }
    return values | changes


def failures(**changes: Any) -> list[str]:
    return find_failures(written(), measured(**changes), MergeConfig())


def test_faithful_merge_passes_without_a_word() -> None:
    assert failures() == []
    assert find_warnings(written(), measured()) == []


@pytest.mark.parametrize(
    ("weights", "changes", "expected"),
    [
        ({"not_finite": ["model.norm.weight"]}, {}, "NaN or infinity, first model.norm.weight"),
        ({"changed_elements": 0, "update_norm": 0.0}, {}, "training changed nothing"),
        ({"changed_elements": 0, "update_norm": 1e-9}, {}, "vanished when rounded to bfloat16"),
        ({}, {"loading": {"missing_keys": ["lm_head.weight"], "unexpected_keys": []}}, "missing keys: lm_head.weight"),
        (
            {},
            {"weights": {"equal": 12, "apart": 0, "largest": 0.0, "tensor": None, "expected": 14}},
            "peft adapts 12 layers and the merge changed 14",
        ),
        (
            {},
            {"weights": {"equal": 13, "apart": 1, "largest": 0.1, "tensor": "q", "expected": 14}},
            "q differs from peft's own merge by 0.1",
        ),
        (
            {},
            {"logits": {"rms": 0.2, "largest": 9.0, "finite": True}},
            "differ by 0.2 of their spread, more than the 0.1",
        ),
        ({}, {"logits": {"rms": float("nan"), "largest": 0.0, "finite": False}}, "not finite"),
        ({}, {"greedy": [{"tokens": 16, "agree": 3, "margin": 0.5}]}, "greedy tokens of probe 1 part after 3 of 16"),
        ({}, {"greedy": [{"tokens": 16, "agree": 3, "margin": None}]}, "greedy tokens of probe 1 part"),
        ({}, {"tokenizer": {"same_encoding": False}}, "tokenizer fails same encoding"),
        (
            {},
            {"template": [{"template": "default", "case": "brings none", "same": False}]},
            "when a request brings none",
        ),
    ],
)
def test_each_defect_is_named(weights: dict[str, Any], changes: dict[str, Any], expected: str) -> None:
    found = find_failures(written(**weights), measured(**changes), MergeConfig())
    assert len(found) == 1
    assert expected in found[0]


def test_tokens_may_part_where_the_trained_model_was_undecided() -> None:
    assert failures(greedy=[{"tokens": 16, "agree": 3, "margin": 0.05}]) == []


def test_last_bit_differences_from_peft_pass() -> None:
    weights = {"equal": 13, "apart": 1, "largest": 2.0**-8, "tensor": "q", "expected": 14}
    assert find_failures(written(), measured(weights=weights), MergeConfig()) == []
    assert find_failures(written(dtype="float32"), measured(weights=weights), MergeConfig(tolerance=0.1)) != []


def test_tolerance_follows_the_written_dtype_unless_given() -> None:
    logits = {"rms": 0.01, "largest": 0.1, "finite": True}
    assert find_failures(written(dtype="float32"), measured(logits=logits), MergeConfig()) != []
    assert find_failures(written(dtype="float32"), measured(logits=logits), MergeConfig(tolerance=0.02)) == []


def test_whole_model_has_no_adapter_to_compare_with() -> None:
    result = measured()
    del result["weights"], result["effect"]
    assert find_failures(written(update_norm=0.0), result, MergeConfig()) == []
    assert find_warnings(written(), result) == []


def test_update_lost_in_rounding_is_warned_of() -> None:
    warnings = find_warnings(written(unchanged=["a"]), measured(effect={"rms": 0.015, "largest": 1, "finite": True}))
    assert "much of what was learned is lost" in warnings[0]
    assert "1 adapted tensors did not change, first a" in warnings[1]

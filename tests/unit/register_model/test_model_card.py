"""The model card: figures, how to serve, kept once beside the weights."""

from dataclasses import replace

import pytest
import yaml

from components.errors import BadInputError
from components.register_model.model_card import CardFacts, put_card, render_card
from components.storage.references import Reference
from components.storage.store import open_store

SHARE = {"value": 0.5, "low": 0.4, "high": 0.6}


@pytest.fixture
def facts(tmp_path):
    return CardFacts(
        name="sums",
        weights=Reference(f"file://{tmp_path}/store/merged/abc", "a" * 64),
        base_source='hub/base"\nlicense: stolen',
        base_revision="",
        licence="apache-2.0",
        system_prompt="Think.\nThen answer.",
        rows=1319,
        table={
            "accuracy_strict": {"base": SHARE, "candidate": SHARE, "delta": {"value": 0.1, "low": 0.05, "high": 0.15}}
        },
        gates=["pass: all is well"],
        settings={
            "engine": "vllm",
            "version": "0.31",
            "dtype": "bfloat16",
            "sampling": {"greedy": {"max_new_tokens": 9}},
        },
    )


def test_the_card_has_figures_with_intervals_and_how_to_serve(facts):
    text = render_card(facts)
    assert (
        "| in the format and right | 50.0% [40.0%, 60.0%] | 50.0% [40.0%, 60.0%] | +10.0 points [+5.0, +15.0] |" in text
    )
    assert "1,319 holdout rows" in text
    assert "    grpo serve sums" in text
    assert "    Think.\n    Then answer." in text


def test_no_value_breaks_out_of_the_front_matter(facts):
    head = yaml.safe_load(render_card(facts).split("---\n")[1])
    assert head == {"base_model": facts.base_source, "license": "apache-2.0", "tags": ["grpo", "lora-merged"]}


def test_the_same_results_make_one_card_beside_the_weights(facts, tmp_path):
    store = open_store(str(tmp_path / "store"))
    first, _ = put_card(store, facts)
    assert first == put_card(store, facts)[0]
    other, _ = put_card(store, replace(facts, rows=5))
    assert [key.rpartition("-")[0] for key in store.keys("merged")] == ["merged/abc-card", "merged/abc-card"]
    assert other != first


def test_weights_of_another_store_are_refused(facts, tmp_path):
    with pytest.raises(BadInputError, match="does not lie in the store"):
        put_card(open_store(str(tmp_path / "elsewhere")), facts)

"""Sampling, the choice of an engine, token handling and token choice, without a model."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from components.errors import BadInputError
from components.generation import Sampling, generation_defaults, interface, open_generator
from components.generation.tokens import encode_prompts, stop_token_ids


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens is 0"),
        ({"temperature": -0.1}, r"temperature is -0\.1"),
        ({"top_p": 0}, "top_p is 0"),
        ({"n": 0}, "n is 0"),
        ({"top_k": -1}, "top_k is -1"),
        ({"repetition_penalty": 0}, "repetition_penalty is 0"),
    ],
)
def test_values_no_engine_could_sample_with_are_refused(values: dict[str, float], said: str) -> None:
    with pytest.raises(BadInputError, match=said):
        Sampling(**values)  # type: ignore[arg-type]


def test_what_is_stated_wins_over_the_models_own() -> None:
    own = {"top_k": 20, "repetition_penalty": 1.1}
    assert Sampling().resolved(own) == Sampling()
    assert Sampling(top_k=None, repetition_penalty=None).resolved(own) == Sampling(top_k=20, repetition_penalty=1.1)
    assert Sampling(top_k=None, repetition_penalty=None).resolved({}) == Sampling()


def test_only_what_the_model_states_counts_as_its_own(tmp_path: Path) -> None:
    assert generation_defaults(tmp_path) == {}
    (tmp_path / "generation_config.json").write_text(json.dumps({"top_k": 20, "top_p": None}))
    assert generation_defaults(tmp_path) == {"top_k": 20}


def test_vllm_where_it_is_not_installed_is_refused_with_the_mend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interface, "find_spec", lambda _name: None)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(BadInputError, match=r"engine is vllm and vllm is not installed.*grpo-pipeline\[vllm\]"):
        open_generator(tmp_path, "vllm")


def test_auto_is_transformers_without_vllm_or_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interface, "find_spec", lambda _name: None)
    assert interface.choose_engine("auto", "auto") == "transformers"
    monkeypatch.setattr(interface, "find_spec", lambda _name: object())
    assert interface.choose_engine("auto", "cpu") == "transformers"
    with pytest.raises(BadInputError, match="engine 'tgi' is not known"):
        interface.choose_engine("tgi", "auto")


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"has no config\.json"):
        open_generator(tmp_path)


def test_end_tokens_are_the_models_and_the_tokenizers() -> None:
    tokenizer = SimpleNamespace(eos_token_id=7, name_or_path="m")
    assert stop_token_ids(tokenizer, {"eos_token_id": [5, 9]}) == [5, 7, 9]
    assert stop_token_ids(tokenizer, {"eos_token_id": 5}) == [5, 7]
    assert stop_token_ids(tokenizer, {}) == [7]
    with pytest.raises(BadInputError, match="has no end token"):
        stop_token_ids(SimpleNamespace(eos_token_id=None, name_or_path="m"), {})


def test_no_prompts_need_no_tokenizer() -> None:
    assert encode_prompts(None, [], 10, None) == []


def test_random_numbers_belong_to_seed_prompt_and_occurrence() -> None:
    from components.generation.choosing import uniform_stream

    stream = uniform_stream(1, [3, 4], 0, 1000)
    assert np.array_equal(stream, uniform_stream(1, [3, 4], 0, 1000))
    for other in ((2, [3, 4], 0), (1, [3, 5], 0), (1, [3, 4], 1)):
        assert not np.array_equal(stream, uniform_stream(*other, 1000))
    assert stream.min() >= 0
    assert stream.max() < 1
    assert stream.mean() == pytest.approx(0.5, abs=0.05)


def test_filters_keep_the_tokens_that_plain_transformers_keeps() -> None:
    import torch
    from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    from components.generation.choosing import choose

    torch.manual_seed(0)
    scores = torch.randn(1, 40) * 2
    for top_k, top_p in ((0, 0.8), (5, 1.0), (12, 0.6), (0, 0.05)):
        kept = TemperatureLogitsWarper(0.7)(torch.empty(0), scores.clone())
        if top_k:
            kept = TopKLogitsWarper(top_k)(torch.empty(0), kept)
        if top_p < 1:
            kept = TopPLogitsWarper(top_p)(torch.empty(0), kept)
        expected = kept.softmax(dim=-1)[0]
        uniforms = (torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000
        sampling = Sampling(temperature=0.7, top_k=top_k, top_p=top_p)
        drawn = choose(scores.expand(20_000, -1), sampling, uniforms)
        shares = torch.bincount(drawn, minlength=40) / 20_000
        assert torch.allclose(shares, expected, atol=2e-4), (top_k, top_p)


def test_a_draw_at_the_very_end_of_the_scale_is_a_token_with_weight() -> None:
    import torch

    from components.generation.choosing import choose

    scores = torch.tensor([[0.0, 5.0, float("-inf"), float("-inf")]])
    highest = torch.tensor([1 - 2**-53], dtype=torch.float64)
    for sampling in (
        Sampling(temperature=1.0),
        Sampling(temperature=1.0, top_p=0.999),
        Sampling(temperature=1.0, top_k=3),
    ):
        assert choose(scores, sampling, highest).item() in (0, 1)

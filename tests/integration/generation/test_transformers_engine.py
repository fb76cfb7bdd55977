"""The transformers engine against `model.generate`, on a random tiny model: same tokens, whatever the batch."""

import json
import shutil
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    LlamaForCausalLM,
    MistralConfig,
    PreTrainedConfig,
    PreTrainedTokenizerFast,
    Qwen3NextConfig,
)

from components.errors import BadInputError
from components.generation import Completion, Sampling, identify, open_generator
from components.generation import transformers_engine as engine


def prompts(count: int) -> list[str]:
    return [f"system: be brief. user: {'x' * (index * 7 % 23)}{index} + {index * index}?" for index in range(count)]


def one_by_one(directory: Path, texts: list[str], limit: int, **settings: float) -> list[list[int]]:
    """What plain transformers generates, greedily and without any batching."""
    return [list(ids) for ids in _one_by_one(directory, tuple(texts), limit, tuple(settings.items()))]


@cache
def _one_by_one(
    directory: Path, texts: tuple[str, ...], limit: int, settings: tuple[tuple[str, float], ...]
) -> list[list[int]]:
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    tokenizer = PreTrainedTokenizerFast.from_pretrained(directory)
    answers = []
    for text in texts:
        ids = tokenizer(text, return_tensors="pt", add_special_tokens=False).input_ids
        with torch.inference_mode():
            output = model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=limit, do_sample=False, **dict(settings)
            )
        answers.append(output[0, ids.shape[1] :].tolist())
    return answers


def generate(
    directory: Path, texts: list[str], sampling: Sampling, batch_size: int | None = 7
) -> list[list[Completion]]:
    with open_generator(directory, "transformers", device="cpu", batch_size=batch_size) as generator:
        return generator.generate(texts, sampling)


def tokens_of(answers: list[list[Completion]]) -> list[list[int]]:
    return [list(completion.ids) for group in answers for completion in group]


@pytest.mark.parametrize("batch_size", [1, 7, None])
def test_greedy_tokens_are_those_of_plain_generate_for_every_prompt(tiny: Path, batch_size: int | None) -> None:
    texts = prompts(16)
    expected = one_by_one(tiny, texts, 30)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tiny)
    stops = set(json.loads((tiny / "generation_config.json").read_text())["eos_token_id"])
    assert 3 < sum(ids[-1] in stops for ids in expected) < 16, "the fixture must end some and truncate others"
    answers = generate(tiny, texts, Sampling(max_new_tokens=30), batch_size)
    for ids, [answer] in zip(expected, answers, strict=True):
        ended = ids[-1] in stops
        text = tokenizer.decode(ids[:-1] if ended else ids, skip_special_tokens=True)
        assert answer == Completion(text, len(ids), not ended, tuple(ids))


def test_prompts_without_anything_in_common_are_completed_too(tiny: Path) -> None:
    texts = [chr(97 + index) * (index + 1) for index in range(12)]
    assert tokens_of(generate(tiny, texts, Sampling(max_new_tokens=20), 5)) == one_by_one(tiny, texts, 20)


def test_the_buffer_moves_many_times_and_nothing_is_lost(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "SLACK_COLUMNS", 2)
    texts = prompts(16) * 2
    assert tokens_of(generate(tiny, texts, Sampling(max_new_tokens=30), 3)) == one_by_one(tiny, texts[:16], 30) * 2


def test_prefills_in_chunks_give_the_same(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = tokens_of(generate(tiny, prompts(12), Sampling(max_new_tokens=8), 12))
    monkeypatch.setattr(engine, "PREFILL_TOKENS", 100)
    assert tokens_of(generate(tiny, prompts(12), Sampling(max_new_tokens=8), 12)) == expected


def test_repetition_penalty_is_that_of_plain_generate(tiny: Path) -> None:
    texts = prompts(16)
    expected = one_by_one(tiny, texts, 30, repetition_penalty=1.5)
    assert expected != one_by_one(tiny, texts, 30)
    found = generate(tiny, texts, Sampling(max_new_tokens=30, repetition_penalty=1.5), 5)
    assert tokens_of(found) == expected


def test_samples_depend_on_seed_prompt_and_index_and_not_on_the_batch(tiny: Path) -> None:
    texts = prompts(10)
    sampling = Sampling(max_new_tokens=16, temperature=1.0, top_p=0.9, top_k=50, n=3, seed=11)
    found = generate(tiny, texts, sampling, 4)
    assert [len(group) for group in found] == [3] * 10
    assert len({completion.ids for completion in found[0]}) > 1, "samples of one prompt differ"
    backwards = generate(tiny, texts[::-1], sampling, 9)[::-1]
    assert tokens_of(backwards) == tokens_of(found)
    alone = generate(tiny, texts[4:5], sampling, 1)
    assert tokens_of(alone) == tokens_of(found[4:5])
    other_seed = generate(tiny, texts, Sampling(max_new_tokens=16, temperature=1.0, n=3, seed=12), 4)
    assert tokens_of(other_seed) != tokens_of(found)


def test_a_prompt_given_twice_is_sampled_anew(tiny: Path) -> None:
    first, second = generate(tiny, prompts(1) * 2, Sampling(max_new_tokens=16, temperature=1.0), 4)
    assert first[0].ids != second[0].ids


def test_first_tokens_are_drawn_as_the_model_weighs_them(tiny: Path) -> None:
    text = prompts(1)[0]
    drawn = generate(tiny, [text], Sampling(max_new_tokens=1, temperature=0.7, n=4000), 500)[0]
    model = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32).eval()
    ids = PreTrainedTokenizerFast.from_pretrained(tiny)(text, return_tensors="pt", add_special_tokens=False).input_ids
    with torch.inference_mode():
        expected = (model(ids).logits[0, -1] / 0.7).softmax(dim=-1)
    counts = torch.bincount(torch.tensor([completion.ids[0] for completion in drawn]), minlength=len(expected))
    deviation = (counts / 4000 - expected).abs()
    assert float((deviation / (expected * (1 - expected) / 4000).sqrt().clamp(min=1e-4)).max()) < 5


def test_models_with_other_caches_give_the_same_through_generate(tiny: Path) -> None:
    texts = prompts(8)
    for sampling in (
        Sampling(max_new_tokens=20),
        Sampling(max_new_tokens=20, repetition_penalty=1.3),
        Sampling(max_new_tokens=12, temperature=1.0, top_p=0.95, n=2, seed=3),
    ):
        with open_generator(tiny, "transformers", device="cpu", batch_size=3) as generator:
            in_slots = generator.generate(texts, sampling)
            generator.plain = False  # type: ignore[attr-defined]
            in_batches = generator.generate(texts, sampling)
        assert tokens_of(in_batches) == tokens_of(in_slots)


def test_out_of_memory_halves_the_batch_and_goes_on(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = prompts(14)
    expected = tokens_of(generate(tiny, texts, Sampling(max_new_tokens=12), 8))
    decode = engine.TransformersGenerator._decode
    seen: list[int] = []

    def short_of_memory(self: engine.TransformersGenerator, slots: engine.Slots) -> torch.Tensor:
        seen.append(len(slots.rows))
        if len(slots.rows) > 3 and len(seen) > 5:
            raise torch.OutOfMemoryError("as CUDA would say it")
        return decode(self, slots)

    monkeypatch.setattr(engine.TransformersGenerator, "_decode", short_of_memory)
    reported: list[tuple[int, int]] = []
    with open_generator(tiny, "transformers", device="cpu", batch_size=8) as generator:
        found = generator.generate(
            texts, Sampling(max_new_tokens=12), lambda done, total: reported.append((done, total))
        )
    assert tokens_of(found) == expected
    assert seen[0] == 8
    assert max(seen[-12:]) <= 2
    assert reported[-1] == (14, 14)


def test_progress_rises_to_the_number_of_completions(tiny: Path) -> None:
    reported: list[tuple[int, int]] = []
    with open_generator(tiny, "transformers", device="cpu", batch_size=4) as generator:
        generator.generate(
            prompts(9),
            Sampling(max_new_tokens=10, n=2, temperature=1.0),
            lambda done, total: reported.append((done, total)),
        )
    assert [done for done, _ in reported] == sorted(done for done, _ in reported)
    assert reported[-1] == (18, 18)


def test_special_tokens_are_dropped_and_format_tags_kept(tiny: Path) -> None:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tiny)
    ids = tokenizer("<answer>7</answer>", add_special_tokens=False).input_ids
    assert len(ids) == 3
    from components.generation.tokens import to_completion

    ended = to_completion(tokenizer, [2, *ids, 1], frozenset({1}), limit=10)
    assert ended == Completion("<answer>7</answer>", 5, False, (2, *ids, 1))
    cut = to_completion(tokenizer, ids, frozenset({1}), limit=3)
    assert cut == Completion("<answer>7</answer>", 3, True, tuple(ids))


def test_the_models_own_generation_config_fills_what_is_left_open(tiny: Path, tmp_path: Path) -> None:
    directory = tmp_path / "own"
    shutil.copytree(tiny, directory)
    stated = json.loads((directory / "generation_config.json").read_text())
    (directory / "generation_config.json").write_text(json.dumps(stated | {"repetition_penalty": 1.5, "top_k": 1}))
    texts = prompts(16)
    own = generate(directory, texts, Sampling(max_new_tokens=30, repetition_penalty=None), 16)
    assert tokens_of(own) == one_by_one(tiny, texts, 30, repetition_penalty=1.5)
    narrow = generate(directory, texts, Sampling(max_new_tokens=30, temperature=2.0, top_k=None), 16)
    assert tokens_of(narrow) == one_by_one(tiny, texts, 30), "top_k of 1 is greedy"


def test_what_identify_says_is_what_is_opened(tiny: Path) -> None:
    with open_generator(tiny, "transformers", device="cpu", dtype="bfloat16") as generator:
        assert generator.identity == identify("transformers", device="cpu", dtype="bfloat16")
        assert generator.identity.dtype == "bfloat16"


def test_learned_positions_are_not_overrun_by_free_slots(tmp_path: Path, tiny: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tiny / name, tmp_path / name)
    torch.manual_seed(1)
    config = GPT2Config(
        vocab_size=261,
        n_positions=64,
        n_embd=16,
        n_layer=2,
        n_head=2,
        bos_token_id=None,
        eos_token_id=list(range(1, 90)),
    )
    GPT2LMHeadModel(config).save_pretrained(tmp_path)
    texts = [f"{index}{'y' * (30 - index)}" for index in range(12)]
    assert tokens_of(generate(tmp_path, texts, Sampling(max_new_tokens=32), 4)) == one_by_one(tmp_path, texts, 32)


SMALL = {
    "vocab_size": 261,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "bos_token_id": None,
    "eos_token_id": list(range(1, 30)),
    "pad_token_id": 0,
    "initializer_range": 0.4,
}


@pytest.mark.parametrize(
    "config",
    [
        MistralConfig(**SMALL, num_hidden_layers=2, sliding_window=8),
        Gemma3TextConfig(
            **SMALL, num_hidden_layers=3, sliding_window=8, sliding_window_pattern=3, tie_word_embeddings=False
        ),
        Qwen3NextConfig(
            **SMALL,
            num_hidden_layers=2,
            layer_types=["linear_attention", "full_attention"],
            linear_num_key_heads=2,
            linear_num_value_heads=2,
            linear_key_head_dim=8,
            linear_value_head_dim=8,
            num_experts=0,
            mlp_only_layers=[0, 1],
        ),
    ],
    ids=["sliding", "sliding-and-full", "linear-and-full"],
)
def test_other_kinds_of_attention_give_the_tokens_of_plain_generate(
    tiny: Path, tmp_path: Path, config: PreTrainedConfig
) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tiny / name, tmp_path / name)
    torch.manual_seed(5)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    # A few tokens behind a long common beginning, beside many: what a window sees must not depend on the padding.
    texts = [f"system: be brief. user: {'xyz' * (index % 3 * 4)}{index}" for index in range(9)]
    expected = one_by_one(tmp_path, texts, 16)
    assert len({tuple(ids) for ids in expected}) > 3, "the model must not answer everything alike"
    assert tokens_of(generate(tmp_path, texts, Sampling(max_new_tokens=16), 4)) == expected


@pytest.mark.parametrize(
    ("texts", "limit", "said"),
    [(["a", ""], 4, "prompt 1 is empty"), (["x" * 250], 10, "prompt 0 has 250 tokens and max_new_tokens is 10")],
)
def test_prompts_that_cannot_be_completed_are_named(tiny: Path, texts: list[str], limit: int, said: str) -> None:
    with pytest.raises(BadInputError, match=said):
        generate(tiny, texts, Sampling(max_new_tokens=limit))


def test_a_model_without_an_end_token_is_refused(tiny: Path, tmp_path: Path) -> None:
    directory = tmp_path / "endless"
    shutil.copytree(tiny, directory)
    (directory / "generation_config.json").unlink()
    for name in ("tokenizer_config.json",):
        stated = json.loads((directory / name).read_text())
        stated.pop("eos_token")
        (directory / name).write_text(json.dumps(stated))
    with pytest.raises(BadInputError, match="no end token"):
        generate(directory, ["a"], Sampling(max_new_tokens=2))


def test_weights_that_are_missing_are_not_made_up(tiny: Path, tmp_path: Path) -> None:
    directory = tmp_path / "incomplete"
    shutil.copytree(tiny, directory)
    weights = load_file(directory / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(BadInputError, match=r"lacks 1 weights \(first: model\.layers\.1\.mlp\.up_proj\.weight\)"):
        generate(directory, ["a"], Sampling(max_new_tokens=2))
    (directory / "model.safetensors").unlink()
    with pytest.raises(BadInputError, match="cannot be loaded"):
        generate(directory, ["a"], Sampling(max_new_tokens=2))


def test_weights_that_give_nan_are_refused(tiny: Path, tmp_path: Path) -> None:
    directory = tmp_path / "broken"
    shutil.copytree(tiny, directory)
    weights = load_file(directory / "model.safetensors")
    weights["model.norm.weight"][3] = float("nan")
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(BadInputError, match="gives NaN in float32"):
        generate(directory, ["a"], Sampling(max_new_tokens=2))


def test_no_prompts_give_no_completions(tiny: Path) -> None:
    assert generate(tiny, [], Sampling()) == []


def test_weights_of_the_fixture_are_float32_by_default_on_a_cpu(tiny: Path) -> None:
    with open_generator(tiny, "transformers", device="cpu") as generator:
        assert isinstance(generator.model, LlamaForCausalLM)  # type: ignore[attr-defined]
        assert generator.model.dtype == torch.float32  # type: ignore[attr-defined]

"""The transformers engine against `model.generate`, on a random tiny model: same tokens, whatever the batch."""

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from components.generation import Completion, Sampling, open_generator

PAD, END, TURN = 0, 1, 2
STOPS = [END, TURN, *range(40, 46)]  # some plain bytes too, so that a random model ends now and then


def write_tokenizer(directory: Path) -> None:
    """A byte-level tokenizer with <answer> as a plain added token and three special ones."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    names = ["<pad>", "<end>", "<turn>", *alphabet]
    tokenizer = Tokenizer(models.BPE(vocab={name: index for index, name in enumerate(names)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<end>", additional_special_tokens=["<turn>"]
    )
    fast.add_tokens(["<answer>", "</answer>"])
    fast.save_pretrained(directory)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama of 2 layers, grouped heads, that ends after some tens of tokens."""
    directory = tmp_path_factory.mktemp("tiny")
    write_tokenizer(directory)
    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=261,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        bos_token_id=None,
        eos_token_id=STOPS,
        pad_token_id=PAD,
        initializer_range=0.4,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config)
    model.generation_config.eos_token_id = STOPS
    model.save_pretrained(directory)
    return directory


def prompts(count: int) -> list[str]:
    return [f"system: be brief. user: {'x' * (index * 7 % 23)}{index} + {index * index}?" for index in range(count)]


def one_by_one(directory: Path, texts: list[str], limit: int, **settings: object) -> list[list[int]]:
    """What plain transformers generates, greedily and without any batching."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    tokenizer = PreTrainedTokenizerFast.from_pretrained(directory)
    answers = []
    for text in texts:
        ids = tokenizer(text, return_tensors="pt", add_special_tokens=False).input_ids
        with torch.inference_mode():
            output = model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=limit, do_sample=False, **settings
            )
        answers.append(output[0, ids.shape[1] :].tolist())
    return answers


def test_greedy_tokens_are_those_of_plain_generate_for_every_prompt(tiny: Path) -> None:
    texts = prompts(30)
    expected = one_by_one(tiny, texts, 40)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tiny)
    assert 3 < sum(ids[-1] in STOPS for ids in expected) < 30, "the fixture must end some and truncate others"
    with open_generator(tiny, "transformers", device="cpu", batch_size=7) as generator:
        answers = generator.generate(texts, Sampling(max_new_tokens=40))
    for ids, [answer] in zip(expected, answers, strict=True):
        ended = ids[-1] in STOPS
        text = tokenizer.decode(ids[:-1] if ended else ids, skip_special_tokens=True)
        assert answer == Completion(text, len(ids), not ended, tuple(ids))

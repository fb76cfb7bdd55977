"""A random tiny model for the engine's tests, made on the spot."""

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

STOPS = [1, 2, *range(40, 46)]  # the end tokens, and some plain bytes, so that a random model ends now and then


def write_tokenizer(directory: Path) -> None:
    """A byte-level tokenizer with <answer> as a plain added token and three special ones."""
    names = ["<pad>", "<end>", "<turn>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE(vocab={name: index for index, name in enumerate(names)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<end>", additional_special_tokens=["<turn>"]
    )
    fast.add_tokens(["<answer>", "</answer>"])
    fast.save_pretrained(directory)


def tiny_config(**changes: object) -> LlamaConfig:
    return LlamaConfig(
        **{
            "vocab_size": 261,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 256,
            "bos_token_id": None,
            "eos_token_id": STOPS,
            "pad_token_id": 0,
            "initializer_range": 0.4,
            "tie_word_embeddings": True,
        }
        | changes
    )


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama of 2 layers with grouped heads; some of its completions end, others run to the limit."""
    directory = tmp_path_factory.mktemp("tiny")
    write_tokenizer(directory)
    torch.manual_seed(7)
    model = LlamaForCausalLM(tiny_config())
    model.generation_config.eos_token_id = STOPS
    model.save_pretrained(directory)
    return directory

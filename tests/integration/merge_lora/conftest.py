"""Tiny random models and adapters, made on the fly, for the tests of the merge."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

TEMPLATE = (
    "{% if messages[0]['role'] != 'system' %}<s>system\nYou are a tiny model.</s>\n{% endif %}"
    "{% for message in messages %}<s>{{ message['role'] }}\n{{ message['content'] }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)
VOCABULARY = 258


def save_tokenizer(directory: Path) -> None:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: index for index, letter in enumerate(alphabet)} | {"<s>": 256, "</s>": 257}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="</s>", chat_template=TEMPLATE
    )
    fast.save_pretrained(directory)


def make_llama(*, tied: bool = False, hidden: int = 32, layers: int = 2) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        attention_bias=True,
        tie_word_embeddings=tied,
        bos_token_id=256,
        eos_token_id=257,
        initializer_range=0.2,
    )
    return randomized(LlamaForCausalLM(config))


def make_gpt2() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_embd=32,
        n_layer=2,
        n_head=4,
        n_positions=2048,
        bos_token_id=256,
        eos_token_id=257,
        initializer_range=0.2,
    )
    return randomized(GPT2LMHeadModel(config))


def randomized(model: Any) -> Any:
    """Biases and norms too, so that one that is forgotten is missed."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


@pytest.fixture(scope="session")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Saved base models by kind and dtype, each made once."""
    makers = {"llama": make_llama, "llama-tied": lambda: make_llama(tied=True), "gpt2": make_gpt2}
    made: dict[tuple[str, str], Path] = {}

    def get(kind: str, dtype: str = "float32") -> Path:
        if (kind, dtype) not in made:
            directory = tmp_path_factory.mktemp(f"{kind}-{dtype}")
            makers[kind]().to(getattr(torch, dtype)).save_pretrained(directory)
            save_tokenizer(directory)
            made[kind, dtype] = directory
        return made[kind, dtype]

    return get


@pytest.fixture
def save_adapter(tmp_path: Path) -> Callable[..., Path]:
    """Save a random adapter of a base model, as training would have left it."""

    def save(base: Path, name: str = "adapter", **settings: Any) -> Path:
        from peft import LoraConfig, get_peft_model

        torch.manual_seed(1)
        model = get_peft_model(
            AutoModelForCausalLM.from_pretrained(base), LoraConfig(**{"r": 4, "lora_alpha": 8} | settings)
        )
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.add_(torch.randn_like(parameter) * 0.1)
        directory = tmp_path / name
        model.save_pretrained(directory)
        return directory

    return save

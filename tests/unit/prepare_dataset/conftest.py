"""A tokenizer without transformers for these tests, and the whole step as one function of its data section."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import jinja2
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from components.contract import build_contract
from components.contract.config import ContractConfig
from components.prepare_dataset import prepare_dataset as step
from components.prepare_dataset.config import DataConfig
from components.storage.store import open_store

SAMPLE = Path(__file__).parent / "gsm8k_sample.jsonl"

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class ChatTokenizer:
    """What the step uses of a transformers tokenizer: a fast engine, its special tokens and a chat template."""

    is_fast = True
    all_special_tokens = ("<|im_start|>", "<|im_end|>")

    def __init__(self, engine: Tokenizer, chat_template: str):
        self.backend_tokenizer = engine
        self.chat_template = chat_template
        self.rendered = 0
        self._compiled = jinja2.Template(chat_template)

    @property
    def added_tokens_decoder(self) -> dict[int, AddedToken]:
        return self.backend_tokenizer.get_added_tokens_decoder()

    def apply_chat_template(self, messages: Any, *, tokenize: bool, add_generation_prompt: bool) -> str:
        assert not tokenize
        self.rendered += 1
        return self._compiled.render(messages=messages, add_generation_prompt=add_generation_prompt)


@pytest.fixture(scope="session")
def engine() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=list(ChatTokenizer.all_special_tokens),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(SAMPLE.read_text(encoding="utf-8").splitlines(), trainer)
    return tokenizer


@pytest.fixture
def make_tokenizer(engine: Tokenizer) -> Callable[..., ChatTokenizer]:
    return lambda chat_template=CHATML: ChatTokenizer(engine, chat_template)


@pytest.fixture
def write_rows(tmp_path: Path) -> Callable[..., str]:
    """Write rows as JSONL; returns the path as text."""

    def write(name: str, rows: Iterable[dict[str, Any]]) -> str:
        path = tmp_path / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return str(path)

    return write


@pytest.fixture
def prepare(tmp_path: Path, make_tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Run the step on a data section given as keywords, into a store in tmp_path."""
    monkeypatch.setattr(step, "load_tokenizer", lambda directory, contract: make_tokenizer())

    def run(store: str = "store", contract: ContractConfig | None = None, **data: Any) -> step.PreparedDataset:
        config = DataConfig.model_validate(data)
        work = tmp_path / "work"
        try:
            return step.prepare_dataset(
                config,
                build_contract(contract or ContractConfig()),
                Path("model"),
                open_store(str(tmp_path / store)),
                work=work,
            )
        finally:
            assert not list(work.iterdir()), "scratch files were left behind"

    return run

"""A model directory with a real transformers tokenizer, an S3 server, and GSM8K where it lies beside the repository."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from servers import SeaweedServer

SAMPLE = Path(__file__).parents[2] / "unit" / "prepare_dataset" / "gsm8k_sample.jsonl"
GSM8K = Path(__file__).parents[4] / "shared" / "data" / "gsm8k"


@pytest.fixture(scope="session")
def sample() -> Path:
    """40 rows of GSM8K."""
    return SAMPLE


@pytest.fixture(scope="session")
def gsm8k() -> Path:
    """GSM8K's train.jsonl and test.jsonl, which are not in the repository."""
    if not GSM8K.is_dir():
        pytest.skip("GSM8K does not lie beside the repository")
    return GSM8K


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a byte-level BPE tokenizer and a ChatML template, and nothing else of a model."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    engine = Tokenizer(models.BPE())
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    engine.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=2000,
        special_tokens=["<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    engine.train_from_iterator(SAMPLE.read_text(encoding="utf-8").splitlines(), trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=engine, eos_token="<|im_end|>", pad_token="<|im_end|>")
    tokenizer.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    directory = tmp_path_factory.mktemp("model")
    tokenizer.save_pretrained(directory)
    return directory


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedServer]:
    """An S3 server."""
    server = SeaweedServer(tmp_path_factory.mktemp("seaweed"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def server(shared_server: SeaweedServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> SeaweedServer:
    """The server, its credentials in this test's environment."""
    for name in ("AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_CA_BUNDLE", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    for name, value in shared_server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("GRPO_CACHE", str(tmp_path / "cache"))
    return shared_server

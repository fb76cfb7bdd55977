"""evaluate_holdout whole: a small chat model on disk, a holdout, a store, and what lies in the artifact afterwards."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from components.contract import default_contract
from components.errors import BadInputError
from components.evaluate_holdout import evaluate_holdout as module
from components.evaluate_holdout.config import AlsoConfig, EvaluationConfig
from components.evaluate_holdout.evaluate_holdout import Evaluation, evaluate_holdout
from components.generation import Completion, Sampling
from components.rewards.config import RewardsConfig
from components.storage.store import ArtifactStore, open_store

TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
ROWS = 12


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random two-layer Llama with a byte-level tokenizer and a chat template."""
    directory = tmp_path_factory.mktemp("model")
    names = ["<pad>", "<end>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE(vocab={name: index for index, name in enumerate(names)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<end>")
    fast.chat_template = TEMPLATE
    fast.save_pretrained(directory)
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=len(names),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=1024,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
    )
    LlamaForCausalLM(config).save_pretrained(directory)
    return directory


@pytest.fixture
def holdout(tmp_path: Path) -> Path:
    """Twelve sums, of two kinds."""
    directory = tmp_path / "holdout"
    directory.mkdir()
    contract = default_contract()
    rows = [
        {
            "id": f"row-{index}",
            "prompt": contract.messages(f"What is {index} + 1?"),
            "question": f"What is {index} + 1?",
            "answer": str(index + 1),
            "solution": None,
            "prompt_tokens": 50,
            "kind": "even" if index % 2 == 0 else "odd",
        }
        for index in range(ROWS)
    ]
    parquet.write_table(pa.Table.from_pylist(rows), directory / "holdout.parquet")
    (directory / "report.json").write_text(json.dumps({"identity": {"fingerprint": "f" * 64}}))
    return directory


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return open_store(str(tmp_path / "store"))


class Scripted:
    """A generator that answers row i rightly and in the format when i is below 6, rightly but bare when below 9."""

    def __init__(self) -> None:
        self.calls = 0

    def generate(self, prompts: list[str], sampling: Sampling, on_progress: Any = None) -> list[list[Completion]]:
        self.calls += 1
        answers = []
        for prompt in prompts:
            number = int(prompt.rpartition("What is ")[2].split()[0])
            text = f"The answer is {number + 1}." if number < 9 else "I do not know."
            if number < 6:
                text = f"<reasoning>\nadd one\n</reasoning>\n<answer>\n{number + 1}\n</answer>"
            answers.append([Completion(text, 10 + number, number == 11, (5, 6)) for _ in range(sampling.n)])
        return answers

    def __enter__(self) -> "Scripted":
        return self

    def __exit__(self, *_: object) -> None:
        return None


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Scripted:
    generator = Scripted()
    monkeypatch.setattr(module, "open_generator", lambda *_args, **_kwargs: generator)
    return generator


def samples_of(store: ArtifactStore, reference: Any, tmp_path: Path) -> list[dict[str, Any]]:
    directory = store.fetch(reference, tmp_path / "cache")
    return parquet.read_table(directory / "samples.parquet").to_pylist()


def test_a_real_model_is_evaluated_and_the_second_time_found(
    model: Path, holdout: Path, store: ArtifactStore, tmp_path: Path
) -> None:
    evaluation = EvaluationConfig(max_new_tokens=8, engine="transformers", device="cpu")
    rewards = RewardsConfig()

    def run() -> Evaluation:
        return evaluate_holdout(
            model,
            holdout,
            default_contract(),
            evaluation,
            rewards,
            store,
            work=tmp_path / "work",
            model_digest="d" * 64,
        )

    first = run()
    assert not first.reused
    assert first.metrics["truncation_rate"]["n"] == ROWS
    assert first.metrics["completion_tokens/mean"]["value"] <= 8
    settings = json.loads((store.fetch(first.reference, tmp_path / "cache") / "settings.json").read_text())
    assert (settings["engine"], settings["dtype"], settings["device"]) == ("transformers", "float32", "cpu")
    second = run()
    assert second.reused
    assert second.reference == first.reference
    assert second.metrics == first.metrics


def test_metrics_say_what_the_samples_say(
    model: Path, holdout: Path, store: ArtifactStore, tmp_path: Path, scripted: Scripted
) -> None:
    evaluated = evaluate_holdout(
        model,
        holdout,
        default_contract(),
        EvaluationConfig(slices="kind"),
        RewardsConfig(),
        store,
        work=tmp_path / "work",
        model_digest="d" * 64,
    )

    def value(name: str) -> float | int | None:
        return evaluated.metrics[name]["value"]

    assert value("format_compliance") == 6 / 12
    assert value("accuracy_strict") == 6 / 12
    assert value("accuracy_lenient") == 9 / 12
    assert value("truncation_rate") == 1 / 12
    assert value("slice/kind/even/accuracy_lenient") == 5 / 6
    assert value("slice/kind/odd/accuracy_lenient") == 4 / 6
    assert value("failure/missing_tag") == 6 / 12
    assert value("completion_tokens/p50") == 15.5
    assert value("reward/correctness") == pytest.approx(6 / 12 * 1.0)
    compliance = evaluated.metrics["format_compliance"]
    assert compliance["low"] == pytest.approx(0.2538, abs=1e-3)  # Wilson for 6 of 12
    assert compliance["high"] == pytest.approx(0.7462, abs=1e-3)
    rows = samples_of(store, evaluated.reference, tmp_path)
    assert len(rows) == ROWS
    assert rows[7]["answer_read_strict"] is None
    assert rows[7]["answer_read_lenient"] == "8"
    assert (rows[7]["correct_strict"], rows[7]["correct_lenient"]) == (False, True)
    assert rows[0]["prompt_text"].startswith("system: ")
    assert evaluated.headline()["accuracy_strict"] == 0.5


def test_other_rewards_score_the_completions_there_are(
    model: Path, holdout: Path, store: ArtifactStore, tmp_path: Path, scripted: Scripted
) -> None:
    def run(rewards: RewardsConfig | None) -> Any:
        return evaluate_holdout(
            model,
            holdout,
            default_contract(),
            EvaluationConfig(),
            rewards,
            store,
            work=tmp_path / "work",
            model_digest="d" * 64,
        )

    without = run(None)
    assert not [name for name in without.metrics if name.startswith("reward/")]
    scored = run(RewardsConfig.model_validate({"strict_format": 1.0}))
    assert scripted.calls == 1, "the second evaluation must not generate again"
    assert scored.metrics["reward/strict_format"]["value"] == pytest.approx(0.5)
    assert scored.reference != without.reference


def test_samples_and_further_sets_are_measured_apart(
    model: Path, holdout: Path, store: ArtifactStore, tmp_path: Path, scripted: Scripted
) -> None:
    other = tmp_path / "other.jsonl"
    other.write_text("\n".join(json.dumps({"question": f"What is {n} + 1?", "answer": n + 1}) for n in (1, 7)))
    evaluation = EvaluationConfig(
        samples=4,
        limit=10,
        also=[AlsoConfig(name="bare", system_prompt=False), AlsoConfig(name="other", path=str(other))],
    )
    evaluated = evaluate_holdout(
        model, holdout, default_contract(), evaluation, None, store, work=tmp_path / "work", model_digest="d" * 64
    )
    metrics = evaluated.metrics
    assert metrics["sampled/accuracy_strict"]["n"] == 40
    assert metrics["sampled/pass_at_4_lenient"]["n"] == 10
    assert metrics["sampled/majority_at_4_lenient"]["value"] == metrics["sampled/accuracy_lenient"]["value"]
    assert metrics["also/other/accuracy_strict"]["value"] == 0.5
    assert metrics["also/bare/accuracy_strict"]["n"] == 10
    bare = [row for row in samples_of(store, evaluated.reference, tmp_path) if row["set"] == "bare"]
    assert not bare[0]["prompt_text"].startswith("system: ")


def test_a_template_that_opens_the_format_unsaid_is_refused(
    model: Path, holdout: Path, store: ArtifactStore, tmp_path: Path
) -> None:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(model)
    tokenizer.chat_template = TEMPLATE.replace("assistant: ", "assistant: <reasoning>\n")
    opened = tmp_path / "opened"
    tokenizer.save_pretrained(opened)
    (opened / "config.json").write_text((model / "config.json").read_text())
    with pytest.raises(BadInputError, match=r"contract\.prefill"):
        evaluate_holdout(
            opened,
            holdout,
            default_contract(),
            EvaluationConfig(),
            None,
            store,
            work=tmp_path / "work",
            model_digest="d" * 64,
        )


def test_tags_that_decoding_would_drop_are_refused(
    model: Path, holdout: Path, store: ArtifactStore, tmp_path: Path
) -> None:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(model)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<answer>", "</answer>"]})
    special = tmp_path / "special"
    tokenizer.save_pretrained(special)
    (special / "config.json").write_text((model / "config.json").read_text())
    with pytest.raises(BadInputError, match="special: false"):
        evaluate_holdout(
            special,
            holdout,
            default_contract(),
            EvaluationConfig(),
            None,
            store,
            work=tmp_path / "work",
            model_digest="d" * 64,
        )


def test_an_unknown_slice_column_is_refused_before_anything_is_loaded(
    holdout: Path, store: ArtifactStore, tmp_path: Path
) -> None:
    with pytest.raises(BadInputError, match=r"evaluation\.slices is 'topic'.*kind"):
        evaluate_holdout(
            tmp_path,
            holdout,
            default_contract(),
            EvaluationConfig(slices="topic"),
            None,
            store,
            work=tmp_path / "work",
            model_digest="d" * 64,
        )

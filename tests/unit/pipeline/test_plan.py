"""`grpo plan` says what a training costs before anything runs, and refuses what it cannot know."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from components.train_grpo.batches import BatchPlan
from components.train_grpo.config import TrainingConfig
from components.train_grpo.shape import measured_shape
from pipeline.cli import app

QUICKSTART = Path(__file__).parents[3] / "configs" / "quickstart.yaml"
QWEN = {
    "model_type": "qwen2", "hidden_size": 1536, "num_hidden_layers": 28, "num_attention_heads": 12,
    "num_key_value_heads": 2, "intermediate_size": 8960, "vocab_size": 151936, "tie_word_embeddings": True,
}  # fmt: skip


def plan(*arguments):
    return CliRunner().invoke(app, ["plan", *map(str, arguments)])


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_steps_batch_and_memory_of_the_quickstart():
    result = plan(QUICKSTART, "--gpu", "cpu", "--set", "training.max_steps=40")
    assert result.exit_code == 0, result.output
    assert "40 steps of 32 completions (4 prompts x G 8)" in result.output
    assert "1,280 completions" in result.output
    assert "fits" in result.output
    assert "no training of this shape was measured" in result.output


def test_what_does_not_fit_comes_with_what_to_change(tmp_path):
    shape = tmp_path / "config.json"
    shape.write_text(json.dumps(QWEN))
    config = QUICKSTART.parent / "gsm8k-large-gpu.yaml"
    result = plan(config, "--model-config", shape, "--rows", "7473", "--gpu", "6")
    assert result.exit_code == 3
    assert "1.54 B parameters" in result.output
    assert "does not fit; change, in this order" in result.output
    assert "per_device_train_batch_size: 2" in result.output


def test_an_unknown_gpu_is_refused_with_the_known_ones():
    result = plan(QUICKSTART, "--gpu", "Voodoo2")
    assert result.exit_code != 0
    assert "one of T4" in str(result.exception)


def test_a_module_the_model_does_not_have_is_refused_with_those_it_has():
    result = plan(QUICKSTART, "--gpu", "cpu", "--set", "lora.target_modules=[query]")
    assert "its linear layers are" in str(result.exception)


def test_no_step_is_refused():
    result = plan(QUICKSTART, "--gpu", "cpu", "--rows", "3", "--set", "training.max_steps=-1")
    assert "no step would be made" in str(result.exception)


def test_a_measured_time_belongs_to_one_shape():
    training = TrainingConfig.model_validate({"max_completion_length": 64})
    batch = BatchPlan(per_device=8, accumulation=1, processes=1, group_size=8)
    same = measured_shape(parameters=10, training=training, batch=batch, full=False)
    assert same == measured_shape(parameters=10, training=training, batch=batch, full=False)
    assert same != measured_shape(parameters=11, training=training, batch=batch, full=False)

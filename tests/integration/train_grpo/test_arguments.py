"""What TRL is given: presets and shipped configs make a real GRPOConfig; what cannot be had is one sentence."""

import sys
from pathlib import Path

import pytest

from components.errors import BadInputError
from components.tracking.config import TrackingConfig
from components.train_grpo.arguments import Device, attention, grpo_arguments, optimizer, sft_arguments, trackers
from components.train_grpo.config import StageConfig, TrainingConfig, stage_training
from components.train_grpo.presets import PRESETS
from pipeline.config import load_config

pytestmark = pytest.mark.slow

CPU = Device("cpu", "CPU", 1, bf16=False)
GPU = Device("cuda", "a GPU", 1, bf16=True)
CONFIGS = sorted((Path(__file__).parents[3] / "configs").glob("*.yaml"))


def arguments(tmp_path, training, device=CPU, plan=None):
    return grpo_arguments(
        training, device, plan or training.batch_plan(device.processes), TrackingConfig(),
        seed=1, output=tmp_path, weights=[1.0], longest_prompt=100,
    )  # fmt: skip


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_each_preset_makes_a_grpo_config(tmp_path, preset):
    training = TrainingConfig.model_validate({"preset": preset})
    made = arguments(tmp_path, training)
    assert made.learning_rate == PRESETS[preset]["learning_rate"]
    assert made.generation_batch_size % made.num_generations == 0
    assert not made.bf16
    assert "8bit" not in str(made.optim)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_every_shipped_config_makes_a_grpo_config(tmp_path, path):
    config = load_config(path)
    for stage in config.stages or [StageConfig(name="grpo")]:
        training = stage_training(config.training, stage)
        training = TrainingConfig.model_validate(
            {**training.model_dump(exclude_unset=True), "generation": "transformers"}
        )
        if stage.kind == "grpo":
            assert arguments(tmp_path, training).num_generations >= 2
        else:
            plan = training.batch_plan()
            made = sft_arguments(training, CPU, plan, TrackingConfig(), seed=1, output=tmp_path, max_length=None)
            assert made.completion_only_loss


def test_a_smaller_micro_batch_keeps_the_step_and_generates_fewer_at_once(tmp_path):
    training = TrainingConfig.model_validate(
        {"num_generations": 4, "prompts_per_step": 4, "per_device_train_batch_size": 8}
    )
    smaller = training.batch_plan().smaller()
    made = arguments(tmp_path, training, plan=smaller)
    assert (made.per_device_train_batch_size, made.gradient_accumulation_steps) == (4, 4)
    assert made.generation_batch_size == 8


def test_a_curriculum_is_not_shuffled(tmp_path):
    assert arguments(tmp_path, TrainingConfig()).shuffle_dataset
    assert not arguments(tmp_path, TrainingConfig(curriculum="size")).shuffle_dataset


def test_eight_bit_optimizers_need_a_gpu_and_bitsandbytes():
    assert optimizer("adamw_8bit", CPU) == "adamw_torch"
    assert optimizer("adamw_torch", CPU) == "adamw_torch"


def test_flash_attention_on_a_cpu_is_refused():
    with pytest.raises(BadInputError, match="needs a GPU"):
        attention("flash_attention_2", CPU)
    assert attention("auto", GPU) is None


def test_vllm_without_a_gpu_is_refused(tmp_path):
    with pytest.raises(BadInputError, match="needs a GPU and there is none here"):
        arguments(tmp_path, TrainingConfig(generation="vllm-colocate"))


def test_wandb_gets_metrics_where_it_is_installed_and_is_refused_where_not(tmp_path, monkeypatch):
    assert trackers(TrackingConfig()) == "none"
    both = TrackingConfig(also=["wandb"])
    monkeypatch.setattr("components.train_grpo.arguments.find_spec", lambda name: None)
    with pytest.raises(BadInputError, match="wandb is not installed here"):
        trackers(both)
    monkeypatch.setattr("components.train_grpo.arguments.find_spec", lambda name: object())
    assert trackers(both) == ["wandb"]


def test_unsloth_is_imported_when_chosen_and_missing_is_one_sentence(monkeypatch):
    from components.train_grpo.train import _import_unsloth

    monkeypatch.setitem(sys.modules, "unsloth", None)
    with pytest.raises(BadInputError, match="unsloth is not installed in this environment"):
        _import_unsloth()

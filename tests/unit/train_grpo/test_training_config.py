"""`training:` takes every GRPOConfig field and nothing else, with the mend for what it refuses."""

import pytest
from pydantic import ValidationError

from components.errors import BadInputError
from components.train_grpo.config import (
    ALWAYS_REFUSED,
    OWNED,
    RENAMED,
    StageConfig,
    TrainingConfig,
    check_steps,
    stage_training,
)
from components.train_grpo.presets import PRESETS
from components.train_grpo.trl_fields import load_fields

SAMPLES = {"int": 3, "float": 0.5, "bool": True, "str": "text", "dict": {"a": 1}, "list": ["a"]}


def sample(field):
    return field.choices[0] if field.choices else SAMPLES[field.types[0]]


@pytest.mark.parametrize("name", sorted(set(load_fields()) - set(OWNED)))
def test_every_field_of_grpo_config_passes_through(name):
    field = load_fields()[name]
    config = TrainingConfig.model_validate({name: sample(field)})
    assert config.trl_values()[name] == sample(field)


@pytest.mark.parametrize("name", sorted(set(OWNED) - ALWAYS_REFUSED))
def test_a_field_the_pipeline_sets_is_taken_at_its_default_and_refused_otherwise(name):
    field = load_fields()[name]
    TrainingConfig.model_validate({name: field.default})
    other = next(v for v in ("other", True, False, 7, {"a": 1}, [0.5]) if v != field.default)
    with pytest.raises(ValidationError, match=f"{name} is set by the pipeline"):
        TrainingConfig.model_validate({name: other})


@pytest.mark.parametrize("name", sorted(ALWAYS_REFUSED))
def test_a_second_switch_for_generation_is_refused(name):
    with pytest.raises(ValidationError, match=r"training\.generation"):
        TrainingConfig.model_validate({name: load_fields()[name].default})


def misspellings(name):
    middle = len(name) // 2
    yield name[:middle] + name[middle + 1 :]
    yield name[:middle] + "q" + name[middle:]


@pytest.mark.parametrize("name", sorted(load_fields()))
def test_a_misspelling_by_one_letter_is_refused_with_a_suggestion(name):
    known = set(load_fields()) | set(TrainingConfig.model_fields)
    for wrong in misspellings(name):
        if wrong in known or wrong in RENAMED:
            continue
        with pytest.raises(ValidationError, match="did you mean"):
            TrainingConfig.model_validate({wrong: 1})


@pytest.mark.parametrize("name", sorted(RENAMED))
def test_a_name_of_older_guides_is_refused_with_what_replaced_it(name):
    with pytest.raises(ValidationError, match="is not a field of TRL 1.16: "):
        TrainingConfig.model_validate({name: 1})


def test_yaml_text_and_json_floats_become_numbers():
    config = TrainingConfig.model_validate({"learning_rate": "1e-5", "max_steps": 3.0})
    assert config.trl_values() == {"learning_rate": 1e-5, "max_steps": 3}
    assert isinstance(config.trl_values()["max_steps"], int)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"max_steps": "many"}, "not int"),
        ({"max_steps": 2.5}, "not int"),
        ({"learning_rate": True}, "is bool, not float"),
        ({"lr_scheduler_type": "cosin"}, "did you mean 'cosine'"),
        ({"gradient_checkpointing": "yes"}, "is str, not bool"),
        ({"beta": None}, "may not be null"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused(values, message):
    with pytest.raises(ValidationError, match=message):
        TrainingConfig.model_validate(values)


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_each_preset_has_a_batch_that_fits_its_group(preset):
    plan = TrainingConfig.model_validate({"preset": preset}).batch_plan()
    assert plan.completions % plan.group_size == 0


def test_own_keys_override_the_preset():
    config = TrainingConfig.model_validate({"preset": "memory-optimised", "learning_rate": 1e-6})
    assert config.trl_values()["learning_rate"] == 1e-6
    assert config.trl_values()["num_generations"] == 8


def test_prompts_per_step_replaces_the_presets_accumulation():
    plan = TrainingConfig.model_validate({"preset": "memory-optimised", "prompts_per_step": 2}).batch_plan()
    assert (plan.per_device, plan.accumulation, plan.prompts) == (1, 16, 2)


def test_a_config_survives_the_way_through_json():
    config = TrainingConfig.model_validate({"preset": "cpu-smoke", "max_steps": 7, "prompts_per_step": 2})
    again = TrainingConfig.from_json(config.to_json())
    assert again.trl_values() == config.trl_values()
    assert again.batch_plan() == config.batch_plan()


def test_a_stage_overrides_the_runs_training():
    training = TrainingConfig.model_validate({"preset": "cpu-smoke", "max_steps": 7})
    stage = StageConfig(name="cold", kind="sft", training={"max_steps": 2})
    assert stage_training(training, stage).trl_values()["max_steps"] == 2
    assert stage_training(training, stage).trl_values()["num_generations"] == 8


def test_a_stages_misspelt_override_is_refused():
    with pytest.raises(ValidationError, match="did you mean 'max_steps'"):
        StageConfig(name="cold", training={"max_step": 2})


def test_no_step_at_all_is_refused():
    training = TrainingConfig.model_validate({"num_generations": 8, "prompts_per_step": 4})
    with pytest.raises(BadInputError, match="no step would be made"):
        check_steps(training, rows=3)


def test_steps_follow_from_epochs_or_max_steps():
    training = TrainingConfig.model_validate({"num_generations": 8, "prompts_per_step": 4, "num_train_epochs": 2})
    assert check_steps(training, rows=40) == 20
    assert check_steps(TrainingConfig.model_validate({"max_steps": 5}), rows=40) == 5


def test_the_number_of_processes_decides_the_accumulation():
    training = TrainingConfig.model_validate(
        {"num_generations": 8, "prompts_per_step": 4, "per_device_train_batch_size": 8, "processes": 2}
    )
    assert training.batch_plan().accumulation == 2


def test_a_stage_cannot_change_the_number_of_processes():
    with pytest.raises(ValidationError, match="all stages run in the same processes"):
        StageConfig(name="cold", training={"processes": 2})


def test_what_is_kept_identifies_a_training_only_where_checks_decide():
    assert TrainingConfig(keep="last", validate_every=7).selection() == {}
    assert TrainingConfig(keep="last", patience=2).selection()["patience"] == 2
    assert TrainingConfig(validate_every=7).selection() != TrainingConfig(validate_every=8).selection()

"""Loading a run config: layers, overrides, paths, and one clear sentence for each fault."""

import textwrap
from pathlib import Path

import pytest

from components.errors import BadInputError
from pipeline.config import apply_override, load_config, overlay

CONFIGS = Path(__file__).parents[3] / "configs"
MINIMAL = """
model: {source: model}
data: {train: rows.jsonl}
"""


def write(folder, text, name="run.yaml"):
    path = folder / name
    path.write_text(textwrap.dedent(text), encoding="utf-8")
    return path


def refusal(folder, text, *overrides):
    with pytest.raises(BadInputError) as caught:
        load_config(write(folder, text), overrides)
    return str(caught.value)


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.name)
def test_every_shipped_config_is_valid(path):
    config = load_config(path)
    assert config.training.batch_plan().completions % config.training.batch_plan().group_size == 0


def test_two_sections_are_enough(tmp_path):
    config = load_config(write(tmp_path, MINIMAL))
    assert config.run.seed == 42
    assert config.registered_name == "grpo"


def test_input_paths_are_taken_against_the_configs_folder(tmp_path):
    config = load_config(write(tmp_path, MINIMAL))
    assert config.data.train.path == str(tmp_path / "rows.jsonl")


def test_output_paths_are_taken_against_the_working_folder(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    config = load_config(write(tmp_path, MINIMAL))
    assert config.tracking.uri == f"sqlite:///{tmp_path / 'here' / '.grpo' / 'mlflow.db'}"
    assert config.store.uri == str(tmp_path / "here" / ".grpo" / "store")


def test_a_misspelt_key_is_refused_with_the_nearest(tmp_path):
    assert "gate: there is no such key; did you mean 'gates'?" in refusal(tmp_path, MINIMAL + "gate: {}\n")
    assert "did you mean 'alpha'" in refusal(tmp_path, MINIMAL + "lora: {alfa: 3}\n")


def test_a_misspelt_training_field_is_refused_with_the_nearest(tmp_path):
    assert "did you mean 'learning_rate'?" in refusal(tmp_path, MINIMAL + "training: {learning_rat: 1}\n")


def test_a_wrong_type_names_field_and_value(tmp_path):
    message = refusal(tmp_path, MINIMAL + "run: {seed: soon}\n")
    assert "run.seed" in message
    assert "'soon'" in message


def test_a_missing_section_is_named(tmp_path):
    assert "data: is missing" in refusal(tmp_path, "model: {source: model}\n")


def test_a_missing_file_says_how_to_start(tmp_path):
    with pytest.raises(BadInputError, match="grpo init"):
        load_config(tmp_path / "none.yaml")


def test_broken_yaml_names_line_and_column(tmp_path):
    assert "line 3, column" in refusal(tmp_path, "model: {source: m}\ndata: [\n")


def test_a_key_written_twice_is_refused(tmp_path):
    assert "'model' is written twice" in refusal(tmp_path, MINIMAL + "model: {source: other}\n")


def test_a_list_is_no_config(tmp_path):
    assert "a mapping of sections" in refusal(tmp_path, "- a\n")


def test_extends_lays_a_file_over_another(tmp_path):
    write(tmp_path, MINIMAL + "run: {name: below, seed: 7}\n", "base.yaml")
    config = load_config(write(tmp_path, "extends: base.yaml\nrun: {name: above}\n"))
    assert (config.run.name, config.run.seed) == ("above", 7)


def test_extends_in_a_circle_is_refused(tmp_path):
    assert "extends itself" in refusal(tmp_path, "extends: run.yaml\n")


def test_an_override_wins_and_is_checked(tmp_path):
    config = load_config(write(tmp_path, MINIMAL), ["training.max_steps=3", "run.name=other"])
    assert config.training.trl_values()["max_steps"] == 3
    assert config.run.name == "other"
    assert "not int" in refusal(tmp_path, MINIMAL, "training.max_steps=many")


def test_an_override_reaches_into_a_shorthand():
    values = {"rewards": {"correctness": 2.0}}
    apply_override(values, "rewards.correctness.weight=0.5")
    assert values == {"rewards": {"correctness": {"weight": 0.5}}}


@pytest.mark.parametrize("text", ["max_steps", "=3", "a..b=1"])
def test_an_override_of_another_form_is_refused(text):
    with pytest.raises(BadInputError, match=r"section\.key=value"):
        apply_override({}, text)


def test_overlay_keeps_what_is_not_overridden():
    assert overlay({"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"b": 9}}) == {"a": {"b": 9, "c": 2}, "d": 3}


def test_g_that_does_not_divide_is_refused_with_choices(tmp_path):
    text = MINIMAL + "training: {num_generations: 8, per_device_train_batch_size: 4, gradient_accumulation_steps: 1}\n"
    assert "gradient_accumulation_steps to one of" in refusal(tmp_path, text)


def test_two_stages_with_one_name_are_refused(tmp_path):
    assert "two stages are named" in refusal(tmp_path, MINIMAL + "stages: [{name: a}, {name: a}]\n")


def test_an_unknown_reward_is_refused_with_the_nearest(tmp_path):
    assert "did you mean 'correctness'" in refusal(tmp_path, MINIMAL + "rewards: {corectness: 2.0}\n")

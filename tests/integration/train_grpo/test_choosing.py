"""What is learned is not touched by watching it; the best step goes on; memory, weights, order and stages as asked."""

import json

import pytest
import torch

from components.errors import BadInputError, GateFailedError
from components.storage.store import fetch
from components.train_grpo.selection import ACCURACY, COMPLIANCE
from components.train_grpo.trainer import MeasuredGRPOTrainer

pytestmark = pytest.mark.slow

SHORT = {"max_steps": 6, "max_completion_length": 12}


@pytest.fixture
def checked(monkeypatch):
    """Makes the checks on validation rows give the accuracies a test wants, by step."""

    def fake(accuracies):
        def check(self, policy):
            return {ACCURACY: accuracies.pop(0), COMPLIANCE: 0.0, "validation/rows": 4.0}

        monkeypatch.setattr("components.train_grpo.validation.Validator.check", check)

    return fake


def test_checks_while_training_change_nothing_of_it(make, monkeypatch):
    watched = make("watched", **SHORT, validate_every=2, keep="last")
    alone = make("alone", **SHORT, validate_every=0, validation_rows=0, keep="last")
    assert watched.weights(watched.here(monkeypatch)) == alone.weights(alone.here(monkeypatch))
    assert sorted(watched.logged({"run_id": run_id(watched)}, ACCURACY)) == [2, 4, 6]


def run_id(training):
    from mlflow import MlflowClient

    client = MlflowClient(training.given["tracking"])
    return client.search_runs([client.get_experiment_by_name("grpo").experiment_id])[0].info.run_id


def test_the_best_step_goes_on_although_its_checkpoint_is_old(make, monkeypatch, checked):
    upto = make("upto", **{**SHORT, "max_steps": 2}, lr_scheduler_type="constant", validate_every=0, keep="last")
    expected = upto.weights(upto.here(monkeypatch))
    checked([0.9, 0.1, 0.2])
    training = make("best", **SHORT, lr_scheduler_type="constant", validate_every=2, save_steps=1)
    result = training.here(monkeypatch)
    record = training.record(result)
    assert record["chosen_step"] == 2
    assert record["validation"][ACCURACY] == 0.9
    assert training.weights(result) == expected
    assert "step 2 goes on to the merge" in training.notes()


def test_the_last_step_goes_on_when_asked(make, monkeypatch, checked):
    checked([0.9, 0.1, 0.2])
    training = make("last", **SHORT, validate_every=2, keep="last")
    assert training.record(training.here(monkeypatch))["chosen_step"] == 6


def test_a_training_that_gets_no_better_ends_early(make, monkeypatch, checked):
    checked([0.5, 0.4, 0.4, 0.9])
    training = make("patient", **{**SHORT, "max_steps": 20}, validate_every=2, patience=2)
    record = training.record(training.here(monkeypatch))
    assert record["stages"][0]["steps"] == 6
    assert record["chosen_step"] == 2
    assert "training ends early at step 6" in training.notes()


def test_samples_say_why_a_completion_is_not_in_the_format(make, monkeypatch):
    import pyarrow.parquet

    training = make("samples", **SHORT, sample_every=2)
    result = training.here(monkeypatch)
    rows = pyarrow.parquet.read_table(fetch(result["reference"]) / "completions.parquet").to_pylist()
    assert {row["step"] for row in rows} == {1, 2, 4, 6}
    assert any("missing_tag" in row["reasons"] for row in rows)
    assert {"reward", "advantage", "rewards/correctness"} <= set(rows[0])
    assert len(training.events("samples")) == 4
    tables = sorted((training.folder / "mlflow-artifacts").rglob("step-*.json"))
    assert len(tables) == 4
    history = training.record(result)["history"]
    assert all(row["time/generation"] > 0 and row["time/update"] > 0 for row in history)
    assert all(row["tokens_per_second/step"] > 0 for row in history)


def fail_above(monkeypatch, limit, when):
    """Make the update run out of memory with more than so many completions at once."""
    original = MeasuredGRPOTrainer.compute_loss

    def compute_loss(self, model, inputs, *arguments, **options):
        if len(inputs["completion_ids"]) > limit and self.state.global_step >= when:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return original(self, model, inputs, *arguments, **options)

    monkeypatch.setattr(MeasuredGRPOTrainer, "compute_loss", compute_loss)


def test_out_of_memory_halves_the_micro_batch_and_goes_on_from_the_checkpoint(make, monkeypatch, caplog):
    fail_above(monkeypatch, limit=4, when=3)
    caplog.set_level("INFO")
    training = make("memory", **SHORT)
    result = training.here(monkeypatch)
    record = training.record(result)
    assert record["batch"] == {"per_device": 4, "accumulation": 2, "processes": 1, "group_size": 4}
    assert [row["step"] for row in record["history"]] == [1, 2, 3, 4, 5, 6]
    assert "goes on from step 2" in caplog.text
    assert "with 4 completions at once on each device and 2 micro-batches, still 8 completions" in training.notes()


def test_out_of_memory_with_one_completion_says_what_to_change(make, monkeypatch):
    fail_above(monkeypatch, limit=0, when=0)
    with pytest.raises(GateFailedError, match="out of memory with one completion at a time"):
        make("tight", **SHORT, per_device_train_batch_size=2).here(monkeypatch)


def test_rows_come_in_the_order_of_a_curriculum(make, monkeypatch):
    seen = []
    original = MeasuredGRPOTrainer._generate

    def generate(self, prompts):
        seen.extend(prompt[-1]["content"] for prompt in prompts)
        return original(self, prompts)

    monkeypatch.setattr(MeasuredGRPOTrainer, "_generate", generate)
    make("curriculum", **SHORT, curriculum="size").here(monkeypatch)
    sizes = [sum(int(word) for word in text.strip("?").split() if word.isdigit()) for text in seen]
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[-1]


def test_a_curriculum_over_a_column_that_is_not_there_is_refused(make, monkeypatch):
    with pytest.raises(BadInputError, match=r"no column 'difficulty'.*data.columns.keep"):
        make("columnless", **SHORT, curriculum="difficulty").here(monkeypatch)


def test_scheduled_and_adaptive_weights_reach_the_trainer_and_mlflow(make, monkeypatch):
    training = make(
        "weights", **SHORT,
        weight_schedule={"incremental_format": {"start": 1.0, "end": 0.0}},
        adaptive_weights={"every": 2, "low": 0.3, "high": 0.8},
    )  # fmt: skip
    result = training.here(monkeypatch)
    form = training.logged(result, "rewards/incremental_format/weight")
    assert [form[step][-1] for step in range(1, 7)] == pytest.approx([1 - step / 6 for step in range(6)])
    # Sums are hardly ever right in twelve tokens, so their weight is raised every two steps, up to twice itself.
    right = training.logged(result, "rewards/correctness/weight")
    assert [right[step][-1] for step in (1, 3, 5)] == pytest.approx([1.0, 1.2, 1.44])
    for row in training.record(result)["history"]:
        step = int(row["step"])
        parts = [(form, "incremental_format"), (right, "correctness")]
        expected = sum(weights[step][-1] * row[f"rewards/{name}/mean"] for weights, name in parts)
        assert row["reward"] == pytest.approx(expected, abs=1e-5)


def test_a_cold_start_and_two_stages_raise_compliance_on_held_out_rows(make, monkeypatch):
    training = make(
        "stages", max_completion_length=48, validation_rows=16, learning_rate=2e-3, guards={"reward_drop": 0},
        stages=[
            {"name": "cold", "kind": "sft", "training": {"max_steps": 20}},
            {"name": "form", "rewards": {"incremental_format": 1.0}, "training": {"max_steps": 4}},
            {"name": "both", "training": {"max_steps": 4}},
        ],
    )  # fmt: skip
    record = training.record(training.here(monkeypatch))
    last = {check["stage"]: check["metrics"][COMPLIANCE] for check in record["checks"]}
    print("compliance by stage:", last)
    assert [stage["name"] for stage in record["stages"]] == ["cold", "form", "both"]
    # The base answers none of these in the format; measured: 0.2 after the cold start, 0.5 after both GRPO stages.
    assert last["cold"] > 0
    assert last["both"] >= last["cold"]
    assert json.loads(training.given["sections"]["stages"])[1]["name"] == "form"


def test_the_frozen_base_is_seen_to_move_when_it_does():
    from components.train_grpo.drift import drift, fingerprint

    model = torch.nn.Linear(8, 8)
    model.weight.requires_grad_(False)
    before = fingerprint(model)
    assert drift(before, fingerprint(model)) == 0.0
    model.weight += 0.01
    assert drift(before, fingerprint(model)) > 1e-3

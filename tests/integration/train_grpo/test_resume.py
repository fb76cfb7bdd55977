"""A training that is killed or told to stop goes on by itself, and ends with the weights of an undisturbed one."""

import random
import signal

import pytest

pytestmark = pytest.mark.slow

STEPS = 22
"""Of the long training; checkpoints every two, checks on validation rows every four."""

KILLS = 10


@pytest.fixture(scope="module")
def undisturbed(make):
    training = make("undisturbed")
    result = training.finish()
    return training, result, training.weights(result)


def test_found_again_when_it_is_already_done(undisturbed):
    training, result, _ = undisturbed
    assert training.finish() == {**result, "reused": True}


@pytest.mark.timeout(1800)
def test_killed_ten_times_it_ends_with_the_same_weights_and_no_step_missing(make):
    settings = {"max_steps": STEPS, "keep": "last"}
    whole = make("whole", **settings)
    expected = whole.weights(whole.finish())
    training = make("killed", **settings)
    source = random.Random(5)
    for target in sorted(source.choices(range(1, STEPS), k=KILLS)):
        assert training.stop_at(target, signal.SIGKILL) == -signal.SIGKILL
    result = training.finish()
    assert training.log().count("goes on from step") >= KILLS // 2
    assert training.weights(result) == expected
    logged = training.logged(result, "reward")
    assert sorted(logged) == list(range(1, STEPS + 1))
    assert all(len(set(values)) == 1 for values in logged.values()), "a step done again gives the same reward"
    assert [row["step"] for row in training.record(result)["history"]] == list(range(1, STEPS + 1))


def test_told_to_stop_it_saves_at_the_end_of_the_step_and_is_resumable(make, undisturbed):
    training = make("stopped")
    assert training.stop_at(3, signal.SIGTERM) == 4
    assert "checkpoint stored" in training.log()
    result = training.finish()
    assert training.weights(result) == undisturbed[2]
    assert sorted(training.logged(result, "reward")) == list(range(1, 11))


def flip(checkpoint):
    file = checkpoint / "adapter_model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.chmod(0o644)
    file.write_bytes(content)


def truncate(checkpoint):
    file = checkpoint / "optimizer.pt"
    file.chmod(0o644)
    file.write_bytes(file.read_bytes()[:100])


def forget(checkpoint):
    checkpoint.chmod(0o755)
    (checkpoint / "manifest.json").unlink()


@pytest.mark.parametrize("damage", [flip, truncate, forget])
def test_a_damaged_newest_checkpoint_is_passed_over(make, undisturbed, damage, monkeypatch, caplog):
    training = make(f"damaged-{damage.__name__}")
    assert training.stop_at(7, signal.SIGKILL) == -signal.SIGKILL
    folders = (training.folder / "store" / "training").rglob("checkpoint-*")
    newest = max((path for path in folders if path.is_dir()), key=lambda path: int(path.name.rpartition("-")[2]))
    damage(newest)
    result = training.here(monkeypatch)
    if damage is not forget:
        assert "is damaged and passed over" in caplog.text
    assert training.weights(result) == undisturbed[2]


def test_a_fresh_attempt_trains_beside_the_first(make, undisturbed, monkeypatch):
    _, result, weights = undisturbed
    second = make("fresh", attempt="20260101-000000")
    again = second.here(monkeypatch)
    assert not again["reused"]
    assert again["reference"].rpartition("/training/")[2] != result["reference"].rpartition("/training/")[2]
    assert second.weights(again) == weights


def test_a_run_given_by_the_platform_gives_way_to_the_checkpoints(make, monkeypatch):
    from mlflow import MlflowClient

    training = make("given")
    assert training.stop_at(3, signal.SIGKILL) == -signal.SIGKILL
    client = MlflowClient(training.given["tracking"])
    experiment = client.get_experiment_by_name("grpo").experiment_id
    own = client.search_runs([experiment])[0].info.run_id
    other = client.create_run(experiment).info.run_id
    monkeypatch.setenv("MLFLOW_RUN_ID", other)
    result = training.here(monkeypatch)
    assert result["run_id"] == own
    assert client.get_run(other).data.tags["grpo.continues_in"] == own

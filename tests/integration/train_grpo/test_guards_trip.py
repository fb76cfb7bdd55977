"""Each guard ends (or warns in) a real training that goes wrong in its way; a healthy one trips none."""

import pytest

from components.errors import GateFailedError

pytestmark = pytest.mark.slow

REWARDS = '''
import time

def one(completions, **columns):
    """Everything earns everything."""
    return [1.0] * len(completions)

def nothing(completions, **columns):
    """Nothing ever earns anything."""
    return [0.0] * len(completions)

def falling(completions, trainer_state=None, **columns):
    """Worse with every step, whatever is written."""
    return [1.0 - trainer_state.global_step / 40 + 0.01 * (index % 3) for index in range(len(completions))]

def slower(completions, trainer_state=None, **columns):
    """Takes longer later on."""
    time.sleep(2.5 if trainer_state.global_step >= 20 else 0.0)
    return [float(len(c[-1]["content"]) % 7) / 7 for c in completions]

def broken(completions, **columns):
    """Fails on every third completion."""
    return [1.0 / (index % 3) for index in range(len(completions))]
'''
SHORT = {"max_completion_length": 8, "save_steps": 50, "validation_rows": 0, "sample_every": 50}
OFF = {"constant_groups_steps": 0, "identical_steps": 0, "entropy_steps": 0, "clipped_steps": 0, "reward_drop": 0}


@pytest.fixture(scope="module")
def reward(tmp_path_factory):
    """A reward section with one function of the file above."""
    path = tmp_path_factory.mktemp("rewards") / "mine.py"
    path.write_text(REWARDS)
    return lambda name: {name: {"use": f"{path}:{name}", "weight": 1.0}, "guard": {"min_completions": 8}}


@pytest.fixture
def stopped(make, reward, monkeypatch):
    """What ends a training, as one sentence."""

    def run(name, *, uses=None, guards=None, **settings):
        values = {**SHORT, "guards": {**OFF, **(guards or {})}, **settings}
        training = make(name, **({"rewards": reward(uses)} if uses else {}), **values)
        with pytest.raises(GateFailedError) as caught:
            training.here(monkeypatch)
        return str(caught.value)

    return run


WILD = {"optim": "sgd", "max_grad_norm": 0.0, "lr_scheduler_type": "constant", "max_steps": 4}


def test_weights_that_become_infinite_stop_at_once(stopped):
    message = stopped("infinite", **WILD, learning_rate=1e30, weight_decay=1e12)
    assert "not finite" in message
    assert "last good checkpoint is kept" in message


def test_scores_that_become_nan_stop_at_once(stopped):
    message = stopped("nan", **WILD, learning_rate=1e30)
    assert "no longer finite at step" in message


def test_a_reward_that_everything_earns_is_saturated(stopped):
    assert "saturated" in stopped("saturated", uses="one", guards={"constant_groups_steps": 3})


def test_a_reward_that_is_never_earned_is_told_from_saturation(stopped):
    message = stopped("never", uses="nothing", guards={"constant_groups_steps": 3}, temperature=1.0)
    assert "never found a reward" in message


def test_a_policy_that_says_one_thing_only_has_collapsed(stopped):
    message = stopped("collapsed", uses="nothing", guards={"constant_groups_steps": 3}, temperature=0.001)
    assert "one completion over and over" in message


def test_identical_completions_stop(stopped):
    assert "were identical" in stopped("identical", guards={"identical_steps": 3}, temperature=0.001)


def test_an_entropy_near_zero_stops(stopped):
    assert "no longer explores" in stopped("entropy", guards={"entropy_steps": 3}, temperature=0.001)


def test_completions_that_are_all_cut_off_stop(stopped):
    assert "max_completion_length" in stopped("clipped", guards={"clipped_steps": 3}, max_completion_length=3)


def test_a_reward_below_its_start_stops(stopped):
    message = stopped("falling", uses="falling", guards={"reward_drop": 0.5}, max_steps=40, max_completion_length=3)
    assert "makes the policy worse" in message


def test_a_reward_that_fails_too_often_stops(stopped):
    assert "max_error_rate" in stopped("errors", uses="broken")


def test_a_policy_far_from_its_reference_warns(make, monkeypatch):
    training = make("kl", **SHORT, guards={**OFF, "kl_limit": 0.01}, beta=0.001, learning_rate=2e-2, max_steps=6)
    training.here(monkeypatch)
    assert "far from the reference model" in training.notes()


def test_steps_that_take_longer_warn(make, reward, monkeypatch):
    settings = {**SHORT, "max_completion_length": 3, "max_steps": 31}
    training = make("creep", rewards=reward("slower"), **settings, guards={**OFF, "step_time_factor": 1.5})
    training.here(monkeypatch)
    assert "completions did not grow, so look at the machine" in training.notes()


def test_a_healthy_training_trips_no_guard(make, monkeypatch):
    tight = dict.fromkeys(("constant_groups_steps", "identical_steps", "entropy_steps", "clipped_steps"), 8)
    training = make(
        "healthy", **{**SHORT, "max_completion_length": 24}, max_steps=31, beta=0.01, learning_rate=2e-4,
        guards={**tight, "step_time_factor": 10.0},
    )  # fmt: skip
    result = training.here(monkeypatch)
    assert training.record(result)["stages"] == [{"name": "grpo", "kind": "grpo", "steps": 31}]
    assert training.notes() == ""

"""What the guard contains, with a real worker process: each of these would stop, stall or mislead a training run."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from components.contract.config import ContractConfig
from components.errors import BadInputError, GateFailedError
from components.rewards import guard as guard_module
from components.rewards.config import RewardsConfig
from components.rewards.guard import KILLS_PER_SEARCH, FailureKind, RewardGuard

NAUGHTY = Path(__file__).with_name("naughty.py")
HONEST = "<reasoning>\n7 plus 5 makes 12.\n</reasoning>\n<answer>\n12\n</answer>"


def own(*names, **changes):
    return {name: {"use": f"{NAUGHTY}:{name}", "weight": 1.0, **changes} for name in names}


def open_guard(rewards, limits=None, **settings):
    limits = {"timeout": 20, "max_error_rate": 1.0} | (limits or {})
    config = RewardsConfig.model_validate({"preset": "none", "guard": limits, **rewards})
    return RewardGuard(config, ContractConfig(), **settings)


def score(guard, *texts, **columns):
    completions = [[{"role": "assistant", "content": text}] for text in texts]
    return guard.score([None] * len(texts), completions, {"answer": ["12"] * len(texts), **columns})


def alive(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    return False


CONTAINED = {
    "raises": (FailureKind.EXCEPTION, "ZeroDivisionError"),
    "strings": (FailureKind.NOT_A_NUMBER, "returned str '1.0', not a number"),
    "short": (FailureKind.WRONG_LENGTH, "returned 0 values for 1 completions"),
    "infinite": (FailureKind.NOT_FINITE, "returned inf"),
    "exits": (FailureKind.EXCEPTION, "SystemExit: 0"),
    "leaves": (FailureKind.DIED, "ended the worker process (exit code 0)"),
    "crashes": (FailureKind.DIED, "ended the worker process (signal 11)"),
    "closes": (FailureKind.DIED, "ended the worker process"),
    "talks_over": (FailureKind.DIED, "ended the worker process"),
}


@pytest.fixture(scope="module")
def full_guard():
    """The library's defaults beside everything that misbehaves in under a second."""
    rewards = {"correctness": 2.0, "strict_format": 1.0} | own(*CONTAINED, "length", "forks", "prints", "mutates")
    with open_guard(rewards) as guard:
        yield guard


@pytest.mark.parametrize("name", CONTAINED)
def test_what_one_completion_breaks_costs_that_completion_and_no_other(full_guard, name):
    scores = score(full_guard, HONEST, name, HONEST)
    kind, message = CONTAINED[name]
    assert [(f.reward, f.index, f.kind, f.completion) for f in scores.failures] == [(name, 1, kind, name)]
    assert message in scores.failures[0].message
    assert scores.errors == {reward.name: int(reward.name == name) for reward in full_guard.rewards}
    for reward in full_guard.rewards:
        assert scores.values[reward.name][1] is None
        assert None not in (scores.values[reward.name][0], scores.values[reward.name][2])
    assert scores.values["correctness"] == [1.0, None, 1.0]
    assert scores.total[0] == scores.total[2] == sum(r.weight * scores.values[r.name][0] for r in full_guard.rewards)
    assert scores.total[1] is None


def test_rewards_that_fork_print_or_change_their_inputs_change_nothing(full_guard):
    scores = score(full_guard, "forks", HONEST)
    assert scores.failures == ()
    assert scores.values["length"] == [5.0, float(len(HONEST))]
    assert scores.values["correctness"] == [0.0, 1.0]


def test_a_crash_in_native_code_leaves_its_traceback(full_guard):
    failure = score(full_guard, "crashes").failures[0]
    assert "Segmentation fault" in failure.traceback
    assert "naughty.py" in failure.traceback


def test_a_traceback_starts_in_the_rewards_own_file(full_guard):
    trace = score(full_guard, "raises").failures[0].traceback
    assert trace.splitlines()[1].strip().startswith(f'File "{NAUGHTY}"')


def test_an_empty_batch_is_no_fault(full_guard):
    scores = score(full_guard)
    assert scores.total == []
    assert scores.values["length"] == []


def test_a_column_of_the_wrong_length_is_refused_by_name(full_guard):
    with pytest.raises(BadInputError, match="column 'answer' has 1 values for 2 completions"):
        full_guard.score([None] * 2, [HONEST] * 2, {"answer": ["12"]})


@pytest.mark.parametrize("name", ["sleeps", pytest.param("sleeps_and_ignores_signals", marks=pytest.mark.slow)])
def test_a_reward_that_hangs_is_killed_in_time_and_the_others_still_count(name):
    with open_guard({"correctness": 2.0} | own(name, "length"), {"timeout": 1.0}) as guard:
        scores = score(guard, HONEST, "sleeps", HONEST)
        assert guard.restarts == 2  # once for the batch, once for the completion that was found
        assert [(f.reward, f.index, f.kind) for f in scores.failures] == [(name, 1, FailureKind.TIMED_OUT)]
        assert scores.values["length"] == [float(len(HONEST)), None, float(len(HONEST))]
        assert score(guard, HONEST).failures == ()


@pytest.mark.slow
def test_a_reward_that_hangs_on_everything_does_not_hang_for_each():
    with open_guard(own("sleeps"), {"timeout": 1.0}) as guard:
        scores = score(guard, *["sleeps"] * 64)
        assert guard.restarts == 1 + KILLS_PER_SEARCH
        assert scores.errors == {"sleeps": 64}


@pytest.mark.slow
def test_a_killed_worker_leaves_no_child_wherever_it_went(tmp_path, monkeypatch):
    monkeypatch.setenv("BREEDS_FILE", str(tmp_path / "pids"))
    with open_guard(own("breeds", whole_batch=True), {"timeout": 2.0}) as guard:
        assert score(guard, "breeds").failures[0].kind is FailureKind.TIMED_OUT
        children = [int(line) for line in (tmp_path / "pids").read_text().split()]
        assert len(children) == 2
        assert not any(alive(pid) for pid in children)


def test_closing_leaves_no_process(tmp_path):
    with open_guard(own("length")) as guard:
        worker = guard._process.pid
        assert alive(worker)
    assert not alive(worker)


@pytest.mark.slow
def test_the_worker_goes_when_its_parent_is_killed():
    program = (
        "import sys, time; sys.path.insert(0, '.')\n"
        "from components.contract.config import ContractConfig\n"
        "from components.rewards.config import RewardsConfig\n"
        "from components.rewards.guard import RewardGuard\n"
        f"config = RewardsConfig.model_validate({{'preset': 'none', 'sleeps': {str(NAUGHTY) + ':sleeps'!r}}})\n"
        "guard = RewardGuard(config, ContractConfig()).start()\n"
        "print(guard._process.pid, flush=True)\n"
        "guard.score([None], ['sleeps'])\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    worker = int(parent.stdout.readline())
    time.sleep(0.5)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    deadline = time.monotonic() + 30
    while alive(worker) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not alive(worker)


def test_a_reward_that_leaves_the_guard_waiting_for_a_message_does_not_stop_it(monkeypatch):
    monkeypatch.setattr(guard_module, "SOCKET_SECONDS", 1)
    with open_guard(own("mumbles", whole_batch=True)) as guard:
        assert score(guard, "mumbles").failures[0].kind is FailureKind.DIED
        assert score(guard, "a").values["mumbles"] == [1.0]


def test_a_column_that_cannot_leave_the_process_is_refused_with_its_name():
    with (
        open_guard(own("length")) as guard,
        pytest.raises(BadInputError, match="cannot be sent there.*columns: answer"),
    ):
        guard.score([None], ["a"], {"answer": [lambda: 0]})


def test_memory_beyond_the_limit_is_an_error_of_that_reward():
    with open_guard(own("eats", "length"), {"memory_mb": 1024}) as guard:
        scores = score(guard, "eats", HONEST)
        assert [(f.reward, f.index, f.kind) for f in scores.failures] == [("eats", 0, FailureKind.EXCEPTION)]
        assert "MemoryError" in scores.failures[0].message


def test_the_run_fails_above_the_error_rate_and_shows_the_first_failure():
    with open_guard({"correctness": 2.0} | own("raises"), {"max_error_rate": 0.01}) as guard:
        score(guard, *[HONEST] * 7, "raises")
        score(guard, *[HONEST] * 7, "raises")
        with pytest.raises(GateFailedError) as caught:
            score(guard, *[HONEST] * 7, "raises")
    said = str(caught.value)
    assert "reward 'raises' failed on 3 of the last 24 completions, more than max_error_rate 0.01 allows" in said
    assert "ZeroDivisionError" in said
    assert "naughty.py" in said
    assert "On the completion: 'raises'" in said


def test_failures_that_are_rare_enough_never_stop_a_run():
    with open_guard(own("raises"), {"max_error_rate": 0.02, "error_window": 200}) as guard:
        for _ in range(10):
            score(guard, *[HONEST] * 49, "raises")
        with pytest.raises(GateFailedError, match="failed on 5 of the last 200"):
            score(guard, *[HONEST] * 48, "raises", "raises")


def test_a_reward_that_never_works_stops_the_run_at_once():
    with open_guard(own("always_raises"), {"max_error_rate": 0.01}) as guard, pytest.raises(GateFailedError):
        score(guard, *[HONEST] * 8)


def test_without_enforcement_errors_are_counted_and_nothing_stops():
    with open_guard(own("always_raises"), {"max_error_rate": 0.0}, enforce=False) as guard:
        assert score(guard, *[HONEST] * 8).errors == {"always_raises": 8}


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("first_only", FailureKind.WRONG_LENGTH, "returned 1 values for 3 completions"),
        ("only_alone", FailureKind.EXCEPTION, "one at a time, please"),
    ],
)
def test_a_reward_that_fails_on_several_and_on_none_alone_fails_on_all(name, kind, message):
    with open_guard({"correctness": 2.0} | own(name)) as guard:
        scores = score(guard, *[HONEST] * 3)
    assert scores.errors == {"correctness": 0, name: 3}
    assert {(failure.kind, failure.index) for failure in scores.failures} == {(kind, 0), (kind, 1), (kind, 2)}
    assert message in scores.failures[0].message
    assert scores.total == [None, None, None]


def test_a_reward_over_the_whole_batch_is_not_asked_for_single_completions():
    with open_guard(own("ranks", whole_batch=True)) as guard:
        assert score(guard, "b", "a", "c").values["ranks"] == [1.0, 0.0, 2.0]
        assert score(guard, "b", "raises").errors == {"ranks": 2}


def test_state_is_kept_over_restarts_and_put_back_from_a_checkpoint():
    rewards = {"counts": {"use": f"{NAUGHTY}:Counts", "options": {"start": 100}}}
    with open_guard(rewards) as guard:
        assert score(guard, "raises").errors == {"counts": 1}
        assert guard.state_dict() == {"counts": {"seen": 100}}
        assert score(guard, "a", "b").values["counts"] == [102.0, 102.0]
        assert score(guard, "raises", "b").errors == {"counts": 2}
        assert score(guard, "leaves").errors == {"counts": 1}
        assert guard.restarts == 1
        assert score(guard, "a").values["counts"] == [103.0]
        state = guard.state_dict()
    assert state == {"counts": {"seen": 103}}
    with open_guard(rewards) as guard:
        guard.load_state_dict(state | {"gone": {}})
        assert score(guard, "a").values["counts"] == [104.0]


def test_a_rewards_surroundings_are_free_of_gpu_ranks_and_heavy_imports(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    with open_guard({"correctness": 1.0} | own("tells_surroundings")) as guard:
        assert score(guard, "a", "b", "c", "d").values["tells_surroundings"] == [1.0] * 4


def test_the_trainers_state_reaches_rewards_without_its_history():
    state = SimpleNamespace(global_step=7, max_steps=10, log_history=[{"loss": 1.0}] * 1000)
    with open_guard(own("knows_the_step")) as guard:
        assert guard.score([None], ["a"], trainer_state=state).values == {"knows_the_step": [7.0]}


def test_asynchronous_rewards_work():
    with open_guard(own("later")) as guard:
        assert score(guard, "a", "b").values["later"] == [2.0, 2.0]


class Trainer:
    """Calls rewards as `GRPOTrainer._calculate_rewards` does."""

    def __init__(self, functions):
        self.functions, self.extra, self.metrics = functions, {}, {}

    def step(self, *texts):
        completions = [[{"role": "assistant", "content": text}] for text in texts]
        prompts = [[{"role": "user", "content": "?"}]] * len(texts)
        ids = [[1, 2, 3]] * len(texts)
        shared = {
            "answer": ["12"] * len(texts),
            "trainer_state": SimpleNamespace(global_step=1),
            "log_extra": lambda column, values: self.extra.setdefault(column, []).extend(values),
            "log_metric": lambda name, value: self.metrics.setdefault(name, []).append(value),
        }
        return {
            f.__name__: f(prompts=prompts, completions=completions, completion_ids=ids, **shared)
            for f in self.functions
        }


def test_as_trl_calls_them_all_rewards_of_a_batch_are_scored_once_and_fail_together():
    with open_guard(own("Counts", "length", "strings")) as guard:
        trainer = Trainer(guard.functions())
        assert trainer.step("a", "bb") == {"Counts": [2.0, 2.0], "length": [1.0, 2.0], "strings": [1.0, 1.0]}
        assert trainer.step("a", "strings") == {"Counts": [4.0, None], "length": [1.0, None], "strings": [1.0, None]}
        assert trainer.metrics["errors/strings"] == [0.0, 0.5]
        assert trainer.metrics["errors/length"] == [0.0, 0.0]


def test_logged_columns_and_metrics_are_replayed_and_columns_keep_their_length():
    with open_guard(own("logs", whole_batch=True)) as guard:
        trainer = Trainer(guard.functions())
        trainer.step("a", "b")
        trainer.step("raises", "b")
        trainer.step("few", "b")
        assert trainer.extra == {"seen": ["a", "b", None, None, None, None]}
        assert trainer.metrics["logs/count"] == [2.0]
        assert trainer.metrics["errors/logs"] == [0.0, 1.0, 1.0]


def test_the_same_lists_scored_again_are_scored_again():
    with open_guard(own("Counts")) as guard:
        function = guard.functions()[0]
        prompts, completions = [None], ["a"]
        assert function(prompts, completions) == [1.0]
        assert function(prompts, completions) == [2.0]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("def f(:", "importing .*SyntaxError"),
        ("import nothing_of_the_kind", "No module named 'nothing_of_the_kind'.*mine.py, line 1"),
        ("import sys; sys.exit(3)", "importing .*SystemExit: 3"),
        ("def g(completions): return []", "has no 'f'; did you mean 'g'|has no 'f'; choose one of: g"),
        ("f = 3", "is int, not a function"),
        ("def f(completions): return []\nf.aspect = 'lenght'", "its aspect is 'lenght'; did you mean 'length'"),
        ("f = max", "does not say its parameters"),
        ("class f:\n  def __init__(self): pass", "class without __call__"),
    ],
)
def test_a_reward_that_cannot_be_loaded_is_refused_at_the_start(tmp_path, source, said):
    (tmp_path / "mine.py").write_text(source)
    with pytest.raises(BadInputError, match=said), open_guard({"mine": {"use": f"{tmp_path}/mine.py:f"}}):
        pass


def test_an_option_the_function_does_not_take_is_refused(tmp_path):
    (tmp_path / "mine.py").write_text("def f(completions, target=3): return [float(target)] * len(completions)")
    entry = {"use": f"{tmp_path}/mine.py:f", "options": {"target": 5}}
    with open_guard({"mine": entry}) as guard:
        assert score(guard, "a").values["mine"] == [5.0]
        assert guard.rewards[0].columns == ()
    with (
        pytest.raises(BadInputError, match=r"rewards\.mine\.options\.tarqet: .* did you mean 'target'"),
        open_guard({"mine": entry | {"options": {"tarqet": 5}}}),
    ):
        pass


def test_an_import_that_kills_the_worker_is_told_as_such(tmp_path):
    (tmp_path / "mine.py").write_text("import os; os._exit(9)")
    with pytest.raises(Exception, match="could not start.*exit code 9"), open_guard({"mine": f"{tmp_path}/mine.py:f"}):
        pass


def test_what_rewards_say_of_themselves_comes_back_from_the_worker():
    with open_guard({"correctness": 2.0} | own("mutates", aspect="style")) as guard:
        library, mine = guard.rewards
    assert (library.name, library.weight, library.aspect, library.columns, library.own) == (
        "correctness", 2.0, "value", ("answer",), False,
    )  # fmt: skip
    assert (mine.aspect, mine.columns, mine.reads_anything, mine.own) == ("style", ("answer",), True, True)


def test_the_guard_is_ready_soon_and_adds_little():
    started = time.perf_counter()
    with open_guard({"correctness": 2.0, "strict_format": 1.0, "incremental_format": 0.5}) as guard:
        ready = time.perf_counter() - started
        completions = [HONEST] * 64
        score(guard, *completions)
        rounds = 20
        seconds = [score(guard, *completions) for _ in range(rounds)]
        added = min(s.seconds - sum(s.seconds_by_reward.values()) for s in seconds) / 64
    # Measured on two cores: 0.7 s and 25 microseconds; the limits leave room for a machine that does other things.
    assert ready < 30
    assert added < 0.002


def test_a_guard_in_a_forked_process_leaves_the_worker_alone():
    with open_guard(own("length")) as guard:
        pid = os.fork()
        if pid == 0:
            guard.close()
            os._exit(0)
        os.waitpid(pid, 0)
        assert score(guard, "abc").values["length"] == [3.0]

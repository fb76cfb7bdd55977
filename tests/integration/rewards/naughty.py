"""Rewards that misbehave, for the guard's tests; most of them only on a completion that says their name."""

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def texts(completions):
    return [completion[-1]["content"] for completion in completions]


def length(prompts, completions, **kwargs):
    """A good one."""
    return [float(len(text)) for text in texts(completions)]


def sleeps(completions, **kwargs):
    if "sleeps" in texts(completions):
        time.sleep(600)
    return [1.0] * len(completions)


def sleeps_and_ignores_signals(completions, **kwargs):
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    return sleeps(completions)


def raises(completions, **kwargs):
    return [1 / (text != "raises") for text in texts(completions)]


def always_raises(completions, **kwargs):
    raise RuntimeError("never works")


def strings(completions, **kwargs):
    return ["1.0" if text == "strings" else 1.0 for text in texts(completions)]


def short(completions, **kwargs):
    return [1.0] * (len(completions) - ("short" in texts(completions)))


def one_number(completions, **kwargs):
    return 1.0


def infinite(completions, **kwargs):
    return [{"infinite": float("inf"), "nan": float("nan")}.get(text, 1.0) for text in texts(completions)]


def forks(completions, **kwargs):
    """Parent and child both return."""
    if "forks" in texts(completions):
        os.fork()
    return [1.0] * len(completions)


def breeds(completions, **kwargs):
    """Starts children that leave the process group, outlive everything, and write down who they are."""
    if "breeds" in texts(completions):
        for new_session in (False, True):
            child = subprocess.Popen(["sleep", "600"], start_new_session=new_session)
            with Path(os.environ["BREEDS_FILE"]).open("a") as file:
                file.write(f"{child.pid}\n")
        time.sleep(600)
    return [1.0] * len(completions)


def prints(completions, **kwargs):
    print("x" * 100_000)
    sys.stdout.flush()
    os.write(1, b'{"kind": "values", "reward": 0, "values": [99.0]}')
    return [1.0] * len(completions)


def exits(completions, **kwargs):
    if "exits" in texts(completions):
        sys.exit(0)
    return [1.0] * len(completions)


def leaves(completions, **kwargs):
    if "leaves" in texts(completions):
        os._exit(0)
    return [1.0] * len(completions)


def crashes(completions, **kwargs):
    if "crashes" in texts(completions):
        ctypes.string_at(0)
    return [1.0] * len(completions)


def closes(completions, **kwargs):
    if "closes" in texts(completions):
        os.closerange(3, 100)
    return [1.0] * len(completions)


def talks_over(completions, **kwargs):
    """Writes on every file it finds open, the guard's own among them."""
    if "talks_over" in texts(completions):
        for descriptor in range(3, 100):
            try:
                os.write(descriptor, b"\0\0\0\4null")
            except OSError:
                continue
    return [1.0] * len(completions)


def mumbles(completions, **kwargs):
    """Announces a long message on every open file, and says no more."""
    if "mumbles" in texts(completions):
        for descriptor in range(3, 100):
            try:
                os.write(descriptor, b"\0\1\0\0")
            except OSError:
                continue
        time.sleep(600)
    return [1.0] * len(completions)


def eats(completions, **kwargs):
    if "eats" in texts(completions):
        bytearray(64 << 30)
    return [1.0] * len(completions)


def mutates(prompts, completions, answer, **kwargs):
    for completion in completions:
        completion[-1]["content"] = "spoilt"
    answer.clear()
    prompts.clear()
    return [1.0] * len(completions)


def logs(completions, log_extra, log_metric, **kwargs):
    """Logs a column and a metric; one value too few when told to."""
    said = texts(completions)
    if "raises" in said:
        raise ValueError("no column this time")
    log_extra("seen", said[: len(said) - ("few" in said)])
    log_metric("logs/count", len(said))
    return [1.0] * len(said)


def tells_surroundings(completions, **kwargs):
    import logging

    return [
        float(os.environ.get("CUDA_VISIBLE_DEVICES") == ""),
        float("RANK" not in os.environ and "MASTER_ADDR" not in os.environ),
        float("torch" not in sys.modules and "trl" not in sys.modules and "transformers" not in sys.modules),
        float(logging.getLogger().name == "root"),
    ][: len(completions)]


def knows_the_step(completions, trainer_state, **kwargs):
    return [float(trainer_state.global_step)] * len(completions)


async def later(completions, **kwargs):
    return [2.0] * len(completions)


def ranks(completions, **kwargs):
    """Depends on the whole batch."""
    said = texts(completions)
    if "raises" in said:
        raise ValueError("cannot rank")
    return [float(sorted(said).index(text)) for text in said]


class Counts:
    """Pays the number of completions it has seen; keeps it as its state."""

    def __init__(self, start=0):
        self.seen = start

    def __call__(self, completions, **kwargs):
        self.seen += len(completions)
        if "raises" in texts(completions):
            raise ValueError("counted, then failed")
        if "leaves" in texts(completions):
            os._exit(1)
        return [float(self.seen)] * len(completions)

    def state_dict(self):
        return {"seen": self.seen}

    def load_state_dict(self, state):
        self.seen = json.loads(json.dumps(state))["seen"]


def first_only(completions, **kwargs):
    """The classic slip: a return inside the loop. Right for one completion, wrong for several."""
    for _ in completions:
        return [1.0]
    return []


def only_alone(completions, **kwargs):
    """Works on one completion and raises on several."""
    if len(completions) > 1:
        raise ValueError("one at a time, please")
    return [1.0]

"""The process rewards run in: started by `guard.RewardGuard`, one for each training rank, and never forked.

It talks with the guard over one inherited socket: pickled requests in, JSON replies out (so that whatever a reward does
to this process, the guard reads nothing but text). Rewards are resolved here from the config; none is pickled. Nothing
here limits time: the guard kills this process, with its children, when a batch takes too long.
"""

import contextlib
import faulthandler
import json
import math
import numbers
import os
import pickle
import random
import signal
import threading
import time
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from components.errors import BadInputError, PipelineError
from components.rewards.build import Reward, build_rewards
from components.rewards.config import RewardsConfig
from components.rewards.processes import kill_descendants

MARKER = "GRPO_REWARD_WORKER"
"""Environment variable by which the guard knows its worker's descendants."""
PARENT_CHECK_SECONDS = 1.0
TRACEBACK_CHARACTERS = 4_000
HERE = Path(__file__).parent


def main(descriptor: int, crash_descriptor: int) -> None:
    """Serve the guard until it hangs up.

    Args:
        descriptor: file descriptor of the socket to the guard.
        crash_descriptor: file descriptor that takes the traceback of a crash in native code.
    """
    faulthandler.enable(file=crash_descriptor)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = Connection(descriptor)
    # A child that a reward forks must not be able to answer in this process's stead.
    os.register_at_fork(after_in_child=lambda: os.close(descriptor))
    _die_with_parent(os.getppid())
    try:
        rewards = _start(pickle.loads(connection.recv_bytes()))  # noqa: S301 (from the guard, our own parent)
        states = json.loads(json.dumps(_states(rewards)))
    except PipelineError as error:
        kind = "bad_input" if isinstance(error, BadInputError) else "failed"
        return _send(connection, {"kind": kind, "message": str(error)})
    except Exception as error:  # noqa: BLE001 (told to the guard, which raises it)
        trouble = f"the rewards could not be made: {type(error).__name__}: {error}\n{_traceback(error)}"
        return _send(connection, {"kind": "failed", "message": trouble})
    described = [_describe(reward) for reward in rewards]
    _send(connection, {"kind": "ready", "rewards": described, "states": states})
    me = os.getpid()
    while True:
        try:
            message = connection.recv_bytes()
        except EOFError:
            return None
        request = pickle.loads(message)  # noqa: S301 (from the guard, our own parent)
        if request["kind"] == "load_state":
            _send(connection, {"problem": _load_states(rewards, request["states"])})
            continue
        for index in request["rewards"]:
            reply = _call(rewards[index], message if rewards[index].own else request)
            if os.getpid() != me:
                os._exit(0)
            _send(connection, {"kind": "values", "reward": index, **reply})


def _start(settings: dict[str, Any]) -> list[Reward]:
    if settings["memory_mb"] is not None:
        import resource

        limit = settings["memory_mb"] * 1024 * 1024
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    random.seed(settings["seed"])
    from components.contract import build_contract
    from components.contract.config import ContractConfig

    contract = build_contract(ContractConfig.from_json(settings["contract"]))
    return build_rewards(RewardsConfig.from_json(settings["rewards"]), contract)


def _describe(reward: Reward) -> dict[str, Any]:
    fields = {key: value for key, value in vars(reward).items() if key != "function"}
    return {**fields, "stateful": _stateful(reward) is not None}


def _stateful(reward: Reward) -> Any | None:
    target = getattr(reward.function, "target", None)
    return target if hasattr(target, "state_dict") and hasattr(target, "load_state_dict") else None


def _states(rewards: Sequence[Reward]) -> dict[str, Any]:
    """The state of each reward that keeps one."""
    targets = {reward.name: _stateful(reward) for reward in rewards}
    return {name: target.state_dict() for name, target in targets.items() if target is not None}


def _load_states(rewards: Sequence[Reward], states: dict[str, Any]) -> str:
    """Give rewards their state back; the problem in words, empty when there was none."""
    for reward in rewards:
        target = _stateful(reward)
        if target is not None and reward.name in states:
            try:
                target.load_state_dict(states[reward.name])
            except Exception as error:  # noqa: BLE001 (a person's code; the guard stops the run with this)
                return f"{reward.name}: {type(error).__name__}: {error}"
    return ""


def _call(reward: Reward, request: Any) -> dict[str, Any]:
    """Run one reward on the batch. A person's own gets its own copy of the inputs, and may do to it what it likes."""
    if isinstance(request, bytes):
        request = pickle.loads(request)  # noqa: S301 (from the guard, our own parent)
    extras: dict[str, list[Any]] = {}
    metrics: list[tuple[str, float]] = []
    count = len(request["completions"])
    arguments = dict(request["columns"])
    if reward.own:
        arguments["log_extra"] = lambda column, values: extras.setdefault(str(column), []).extend(values)
        arguments["log_metric"] = lambda name, value: metrics.append((str(name), float(value)))
        if request["trainer_state"] is not None:
            arguments["trainer_state"] = SimpleNamespace(**request["trainer_state"])
    started = time.perf_counter()
    try:
        output = reward.function(prompts=request["prompts"], completions=request["completions"], **arguments)
        values, problems = _read(output, count)
        for column, logged in extras.items():
            if len(logged) != count:
                raise ValueError(f"log_extra({column!r}, ...) got {len(logged)} values for {count} completions")
        target = _stateful(reward)
        state = json.loads(json.dumps(target.state_dict())) if target is not None else None
    except BaseException as error:  # noqa: BLE001 (a person's code may raise anything; the guard counts it)
        return {
            "failure": {
                "kind": error.kind if isinstance(error, _BadOutputError) else "exception",
                "message": f"{type(error).__name__}: {error}" if not isinstance(error, _BadOutputError) else str(error),
                "traceback": _traceback(error),
            },
            "seconds": time.perf_counter() - started,
        }
    return {
        "values": values,
        "problems": problems,
        "extras": {column: [_plain(value) for value in logged] for column, logged in extras.items()},
        "metrics": metrics,
        "state": state,
        "seconds": time.perf_counter() - started,
    }


class _BadOutputError(Exception):
    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def _read(output: Any, count: int) -> tuple[list[float | None], list[tuple[int, str, str]]]:
    """The values of a reward's output, and what is wrong with single ones: (index, kind, message)."""
    if output is None or isinstance(output, str | bytes | dict) or not hasattr(output, "__iter__"):
        raise _BadOutputError("wrong_type", f"returned {type(output).__name__} {output!r:.100}, not a list of numbers")
    items = list(output)
    if len(items) != count:
        raise _BadOutputError("wrong_length", f"returned {len(items)} values for {count} completions")
    values: list[float | None] = []
    problems = []
    for index, item in enumerate(items):
        value = item.item() if not isinstance(item, numbers.Real) and callable(getattr(item, "item", None)) else item
        if value is None:
            values.append(None)
        elif not isinstance(value, numbers.Real):
            problems.append((index, "not_a_number", f"returned {type(value).__name__} {value!r:.100}, not a number"))
            values.append(None)
        elif not math.isfinite(value):
            problems.append((index, "not_finite", f"returned {value}"))
            values.append(None)
        else:
            values.append(float(value))
    return values, problems


def _traceback(error: BaseException) -> str:
    """The traceback from the reward's own code on, without the frames of this package that called it."""
    frames = error.__traceback__
    while frames is not None and Path(frames.tb_frame.f_code.co_filename).parent == HERE:
        frames = frames.tb_next
    text = "".join(traceback.format_exception(type(error), error, frames or error.__traceback__))
    return text[-TRACEBACK_CHARACTERS:]


def _plain(value: Any) -> Any:
    """A logged value as JSON can carry it: numbers, text, booleans and nothing else."""
    if callable(getattr(value, "item", None)) and not isinstance(value, numbers.Real):
        with contextlib.suppress(ValueError, RuntimeError):
            value = value.item()
    if value is None or isinstance(value, bool | int | str):
        return value
    return float(value) if isinstance(value, numbers.Real) else str(value)


def _send(connection: Connection, message: dict[str, Any]) -> None:
    connection.send_bytes(json.dumps(message).encode())


def _die_with_parent(parent: int) -> None:
    """End this process and what it started when the guard is gone, whatever a reward is doing at that moment."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(PARENT_CHECK_SECONDS)
        kill_descendants(os.getpid(), f"{MARKER}={os.environ.get(MARKER)}")
        os.killpg(os.getpgrp(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True, name="parent-watch").start()

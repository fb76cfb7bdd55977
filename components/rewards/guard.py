"""Rewards run apart from training: one worker process, limits, and no failure that passes for a score.

Used in three places with one behaviour: training (`guard.functions()` go to `GRPOTrainer`), the smoke test and
evaluation (`guard.score(...)`). Start it before CUDA is touched, one for each rank.

What it does: all rewards of a batch run in one fresh worker process; a reward that raises, hangs, crashes, forks,
prints, exits or returns what is no finite number costs that reward's completion and never the run. Such a completion
gets None from *every* reward: TRL sums with nansum, so one None among numbers would count as 0, and a crash could be
worth more than a penalty. Failures are counted and reported as `errors/<name>`; above `max_error_rate` the run stops
and shows the first one.

What it does not do: it is no sandbox. A reward runs with the rights of the step, its files and its network; only
`code_execution` isolates what it runs, further down.
"""

import contextlib
import json
import os
import pickle
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from multiprocessing.connection import Connection
from typing import IO, TYPE_CHECKING, Any, Self

from components.errors import BadInputError, GateFailedError, PipelineError
from components.rewards.build import Reward, completion_text
from components.rewards.config import RewardsConfig
from components.rewards.definition import Aspect
from components.rewards.processes import kill_tree
from components.rewards.worker import MARKER

if TYPE_CHECKING:
    from components.contract.config import ContractConfig

SHOWN_CHARACTERS = 600
SOCKET_SECONDS = 30
"""Longest pause inside one message; a reward that wrote into the worker's socket would otherwise leave both waiting."""
ENDING_SECONDS = 5
"""How long a worker that hung up may take to end, so that its exit code can be told."""
KILLS_PER_SEARCH = 3
"""How often one batch may kill the worker while the guilty completion is searched; the rest then counts as guilty."""
LEAST_SINGLE_SECONDS = 5.0
"""What one completion is given, at least, while the guilty one is searched (but never more than the batch's limit)."""
WITHHELD_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""So that a reward that imports a training library does not join the trainer's process group."""


class FailureKind(StrEnum):
    """How a reward failed on a completion."""

    EXCEPTION = "exception"
    WRONG_LENGTH = "wrong_length"
    WRONG_TYPE = "wrong_type"
    NOT_A_NUMBER = "not_a_number"
    NOT_FINITE = "not_finite"
    TIMED_OUT = "timed_out"
    DIED = "died"


@dataclass(frozen=True)
class Failure:
    """One reward that failed on one completion.

    Attributes:
        reward: its name.
        index: the completion's place in the batch.
        kind: how it failed.
        message: in a sentence.
        traceback: where, empty when there is none (time limit, wrong values).
        completion: the start of the completion.
    """

    reward: str
    index: int
    kind: FailureKind
    message: str
    traceback: str
    completion: str


@dataclass(frozen=True)
class Scores:
    """What the rewards said about a batch of n completions.

    Attributes:
        values: reward name -> n values; None where it does not apply, and in every reward where any of them failed.
        total: weighted sum of each completion's values, as TRL makes it; None where all are None.
        errors: reward name -> completions it failed on.
        failures: each of them.
        seconds: wall-clock time of the whole batch.
        seconds_by_reward: reward name -> time inside the worker.
        extras: reward name -> column -> n values given to `log_extra`.
        metrics: reward name -> (name, value) pairs given to `log_metric`.
    """

    values: dict[str, list[float | None]]
    total: list[float | None]
    errors: dict[str, int]
    failures: tuple[Failure, ...]
    seconds: float
    seconds_by_reward: dict[str, float]
    extras: dict[str, dict[str, list[Any]]]
    metrics: dict[str, list[tuple[str, float]]]


@dataclass
class _Batch:
    prompts: Sequence[Any]
    completions: Sequence[Any]
    columns: dict[str, Sequence[Any]]
    trainer_state: dict[str, Any] | None

    def request(self, rewards: Sequence[int], index: int | None = None) -> bytes:
        part = slice(None) if index is None else slice(index, index + 1)
        columns = {name: list(values[part]) for name, values in self.columns.items()}
        request = {
            "kind": "score",
            "rewards": list(rewards),
            "prompts": list(self.prompts[part]),
            "completions": list(self.completions[part]),
            "columns": columns,
            "trainer_state": self.trainer_state,
        }
        try:
            return pickle.dumps(request, protocol=pickle.HIGHEST_PROTOCOL)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise BadInputError(
                f"the rewards run in another process, and a column cannot be sent there: {error} (columns: "
                f"{', '.join(columns)}); keep plain values in the dataset"
            ) from error


@dataclass
class _Exchange:
    """What came of one request.

    Attributes:
        done: replies by reward.
        broken: how the worker broke at the first reward without a reply.
        seconds: how long the worker had it, its restart not included.
    """

    done: dict[int, dict[str, Any]]
    broken: tuple[FailureKind, str, str] | None
    seconds: float


@dataclass
class _Outcome:
    """One reward over one batch, as it is put together."""

    values: list[float | None]
    failures: dict[int, tuple[FailureKind, str, str]] = field(default_factory=dict)
    extras: dict[str, list[Any]] = field(default_factory=dict)
    metrics: list[tuple[str, float]] = field(default_factory=list)
    seconds: float = 0.0


class RewardGuard:
    """A worker process that holds a run's rewards; a context manager."""

    def __init__(
        self,
        config: RewardsConfig,
        contract: "ContractConfig",
        *,
        seed: int = 0,
        enforce: bool = True,
    ) -> None:
        """Nothing is started yet; `start` or `with` does.

        Args:
            config: the rewards and the guard's limits.
            contract: the run's contract section; the worker builds the contract from it.
            seed: seeds Python's `random` in the worker (give each rank its own).
            enforce: False scores on whatever the error rate is (the smoke test reports it itself).
        """
        self.config = config
        self._contract = contract
        self._seed = seed
        self._enforce = enforce
        self._marker = f"{MARKER}={uuid.uuid4().hex}"
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._crash_log: IO[bytes] | None = None
        self._owner = os.getpid()
        self._lock = threading.RLock()
        self._rewards: list[Reward] = []
        self._stateful: set[str] = set()
        self._states: dict[str, Any] = {}
        self._window: deque[tuple[int, dict[str, int]]] = deque()
        self._first_failure: dict[str, Failure] = {}
        self._extra_owner: dict[str, str] = {}
        self._memo: _Memo | None = None
        self.restarts = 0

    @property
    def rewards(self) -> list[Reward]:
        """The run's rewards with guarded functions, in the config's order."""
        return list(self._rewards)

    def start(self) -> Self:
        """Start the worker and wait until the rewards are loaded.

        Raises:
            BadInputError: when a reward cannot be loaded or made.
            PipelineError: when the worker dies or is not ready in `start_timeout` seconds.
        """
        with self._lock:
            if self._process is None:
                self._spawn()
        return self

    def close(self) -> None:
        """Kill the worker and what it started. Harmless when there is none."""
        with self._lock:
            if self._process is not None and os.getpid() == self._owner:
                self._kill()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def functions(self) -> list[Callable[..., list[float | None]]]:
        """The rewards as `GRPOTrainer(reward_funcs=...)` takes them; the first one called on a batch scores all.

        Pass `reward_weights=[reward.weight for reward in guard.rewards]` beside them.
        """
        return [reward.function for reward in self._rewards]

    def state_dict(self) -> dict[str, Any]:
        """State of rewards that keep one, JSON-able, as of the last batch; it belongs in the checkpoint."""
        return dict(self._states)

    def load_state_dict(self, states: Mapping[str, Any]) -> None:
        """Give rewards the state they had at a checkpoint.

        Args:
            states: what `state_dict` returned; names of rewards that keep no state any more are ignored.
        """
        with self._lock:
            self._states |= {name: state for name, state in states.items() if name in self._stateful}
            self._send_states()

    def score(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        columns: Mapping[str, Sequence[Any]] | None = None,
        *,
        trainer_state: Any = None,
    ) -> Scores:
        """All rewards on one batch.

        Args:
            prompts: n prompts, chat messages or strings.
            completions: n completions, chat messages or strings.
            columns: dataset columns, n values each.
            trainer_state: transformers' TrainerState; its plain fields reach rewards that ask for it.

        Returns:
            The values, the weighted total and what failed.

        Raises:
            GateFailedError: when a reward failed on more than `max_error_rate` of the recent completions.
            PipelineError: when the worker cannot be started again.
        """
        with self._lock:
            return self._score(prompts, completions, columns or {}, trainer_state)

    # ---- scoring ----

    def _score(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        columns: Mapping[str, Sequence[Any]],
        trainer_state: Any,
    ) -> Scores:
        if self._process is None:
            self._spawn()
        started = time.perf_counter()
        shown = [_messages(completion) for completion in completions]
        if not any(reward.own for reward in self._rewards):
            # The library reads no prompt, and prompts are most of what would be sent.
            prompts = [None] * len(shown)
        batch = _Batch(prompts, shown, self._needed(columns, len(shown)), _plain_state(trainer_state))
        outcomes = self._run(batch)
        failures = tuple(
            Failure(reward.name, index, kind, message, trace, completion_text(shown[index])[:SHOWN_CHARACTERS])
            for reward, outcome in zip(self._rewards, outcomes, strict=True)
            for index, (kind, message, trace) in sorted(outcome.failures.items())
        )
        unscorable = {failure.index for failure in failures}
        values: dict[str, list[float | None]] = {
            reward.name: [None if index in unscorable else value for index, value in enumerate(outcome.values)]
            for reward, outcome in zip(self._rewards, outcomes, strict=True)
        }
        scores = Scores(
            values=values,
            total=[self._total(values, index) for index in range(len(shown))],
            errors={reward.name: len(o.failures) for reward, o in zip(self._rewards, outcomes, strict=True)},
            failures=failures,
            seconds=time.perf_counter() - started,
            seconds_by_reward={reward.name: o.seconds for reward, o in zip(self._rewards, outcomes, strict=True)},
            extras={reward.name: o.extras for reward, o in zip(self._rewards, outcomes, strict=True)},
            metrics={reward.name: o.metrics for reward, o in zip(self._rewards, outcomes, strict=True)},
        )
        self._judge(scores, len(shown))
        return scores

    def _total(self, values: Mapping[str, Sequence[float | None]], index: int) -> float | None:
        terms = [reward.weight * value for reward in self._rewards if (value := values[reward.name][index]) is not None]
        return sum(terms) if terms else None

    def _needed(self, columns: Mapping[str, Sequence[Any]], count: int) -> dict[str, Sequence[Any]]:
        """The columns some reward may read, each checked for its length."""
        everything = any(reward.reads_anything for reward in self._rewards)
        wanted = {column for reward in self._rewards for column in (*reward.columns, *reward.optional_columns)}
        needed = {name: values for name, values in columns.items() if everything or name in wanted}
        for name, values in needed.items():
            if len(values) != count:
                raise BadInputError(f"column {name!r} has {len(values)} values for {count} completions")
        return needed

    def _run(self, batch: _Batch) -> list[_Outcome]:
        """Every reward on the batch; what breaks the worker is searched for and the rest goes on."""
        count = len(batch.completions)
        outcomes = [_Outcome([None] * count) for _ in self._rewards]
        pending = list(range(len(self._rewards))) if count else []
        while pending:
            exchange = self._exchange(batch.request(pending), pending, self.config.guard.timeout)
            for index, reply in exchange.done.items():
                pending.remove(index)
                self._take(batch, index, reply, outcomes[index])
            if exchange.broken is not None:
                guilty = pending.pop(0)
                self._search(batch, guilty, exchange.broken, outcomes[guilty])
        return outcomes

    def _take(self, batch: _Batch, index: int, reply: dict[str, Any], outcome: _Outcome) -> None:
        failure = reply.get("failure")
        if failure is not None:
            trouble = (FailureKind(failure["kind"]), failure["message"], failure["traceback"])
            self._search(batch, index, trouble, outcome)
            return
        self._keep(index, reply, outcome, range(len(batch.completions)))

    def _keep(self, index: int, reply: dict[str, Any], outcome: _Outcome, places: Sequence[int]) -> None:
        """Enter a reply about the completions at `places` into the outcome."""
        name = self._rewards[index].name
        for place, value in zip(places, reply["values"], strict=True):
            outcome.values[place] = value
        for position, kind, message in reply["problems"]:
            outcome.failures[places[position]] = (FailureKind(kind), message, "")
        for column, logged in reply["extras"].items():
            if self._extra_owner.setdefault(column, name) != name:
                column = f"{name}/{column}"  # two rewards logged one column: both are kept
                self._extra_owner.setdefault(column, name)
            kept = outcome.extras.setdefault(column, [None] * len(outcome.values))
            for place, value in zip(places, logged, strict=True):
                kept[place] = value
        outcome.metrics.extend((metric, value) for metric, value in reply["metrics"])
        outcome.seconds += reply["seconds"]
        if reply["state"] is not None:
            self._states[name] = reply["state"]

    def _search(self, batch: _Batch, index: int, trouble: tuple[FailureKind, str, str], outcome: _Outcome) -> None:
        """Find which completions a failed reward fails on, one by one; all of them where that has no meaning."""
        count = len(batch.completions)
        reward = self._rewards[index]
        if count == 1 or reward.whole_batch:
            outcome.failures.update(dict.fromkeys(range(count), trouble))
            self._send_states()
            return
        timeout = self.config.guard.timeout
        limit = max(timeout / count, min(timeout, LEAST_SINGLE_SECONDS))
        left = timeout + KILLS_PER_SEARCH * limit
        kills = 0
        for place in range(count):
            if kills >= KILLS_PER_SEARCH or left <= 0:
                outcome.failures[place] = trouble
                continue
            exchange = self._exchange(batch.request([index], place), [index], min(limit, left))
            left -= exchange.seconds
            if exchange.broken is not None:
                kills += 1
                outcome.failures[place] = exchange.broken
            elif (failure := exchange.done[index].get("failure")) is not None:
                outcome.failures[place] = (FailureKind(failure["kind"]), failure["message"], failure["traceback"])
            else:
                self._keep(index, exchange.done[index], outcome, [place])
        if not outcome.failures:
            # It works on one completion and fails on several, as a `return` inside the loop does: nothing it said of
            # the single ones would be said in training, and the failure must not go uncounted.
            outcome.values[:] = [None] * count
            outcome.failures.update(dict.fromkeys(range(count), trouble))
            self._send_states()

    def _judge(self, scores: Scores, count: int) -> None:
        """Stop the run when a reward fails too often."""
        for failure in scores.failures:
            self._first_failure.setdefault(failure.reward, failure)
        limits = self.config.guard
        self._window.append((count, scores.errors))
        while len(self._window) > 1 and sum(n for n, _ in self._window) - self._window[0][0] >= limits.error_window:
            self._window.popleft()
        scored = sum(n for n, _ in self._window)
        if not self._enforce:
            return
        for reward in self._rewards:
            failed = sum(errors[reward.name] for _, errors in self._window)
            if failed > limits.max_error_rate * max(scored, limits.min_completions):
                raise GateFailedError(self._verdict(reward.name, failed, scored))

    def _verdict(self, name: str, failed: int, scored: int) -> str:
        first = self._first_failure[name]
        rate = self.config.guard.max_error_rate
        trace = f"\n{first.traceback.rstrip()}" if first.traceback else ""
        return (
            f"reward {name!r} failed on {failed} of the last {scored} completions, more than max_error_rate {rate:g} "
            f"allows. First failure ({first.kind}): {first.message}{trace}\nOn the completion: {first.completion!r}\n"
            f"Mend the reward and try it with `grpo rewards try CONFIG --completion FILE --only {name}`."
        )

    # ---- the worker ----

    def _exchange(self, request: bytes, rewards: Sequence[int], seconds: float) -> _Exchange:
        """Send a request and take the replies for so many seconds; a worker that breaks is started anew."""
        connection = self._connected()
        started = time.monotonic()
        done: dict[int, dict[str, Any]] = {}
        broken: tuple[FailureKind, str, str] | None = None
        try:
            connection.send_bytes(request)
            while len(done) < len(rewards) and broken is None:
                if connection.poll(max(0.0, started + seconds - time.monotonic())):
                    reply = _reply(connection.recv_bytes(), rewards[len(done)])
                    done[reply["reward"]] = reply
                else:
                    message = f"took more than {seconds:.3g} s and was killed"
                    if done:
                        message += f" ({len(done)} rewards before it are part of that time)"
                    broken = FailureKind.TIMED_OUT, message, ""
        except (EOFError, OSError, ValueError) as error:
            broken = FailureKind.DIED, *self._obituary(error)
        spent = time.monotonic() - started
        if broken is not None:
            self._restart()
        return _Exchange(done, broken, spent)

    def _connected(self) -> Connection:
        if self._connection is None:
            self._spawn()
        if self._connection is None:
            raise PipelineError("the reward worker is not running")
        return self._connection

    def _obituary(self, error: Exception) -> tuple[str, str]:
        """How the worker ended, and its native traceback when it crashed."""
        hung_up = isinstance(error, EOFError | ConnectionError)
        code: int | None = None
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = self._process.wait(timeout=ENDING_SECONDS if hung_up else 0)
        if code is not None:
            how = f"exit code {code}" if code >= 0 else f"signal {-code}"
        else:
            how = "it closed its connection" if hung_up else "it wrote into its connection"
        trace = ""
        if self._crash_log is not None:
            self._crash_log.seek(0)
            trace = self._crash_log.read()[:4_000].decode(errors="replace")
        return f"ended the worker process ({how})", trace

    def _restart(self) -> None:
        self._kill()
        self._spawn()
        self.restarts += 1
        self._send_states()

    def _send_states(self) -> None:
        """Put the rewards that keep state back to the last good one."""
        if not self._states or self._connection is None:
            return
        problem = "took more than start_timeout seconds"
        try:
            self._connection.send_bytes(pickle.dumps({"kind": "load_state", "states": self._states}))
            if self._connection.poll(self.config.guard.start_timeout):
                problem = json.loads(self._connection.recv_bytes())["problem"]
        except (EOFError, OSError, ValueError) as error:
            problem, _ = self._obituary(error)
        if problem:
            self._kill()
            raise PipelineError(f"a reward's load_state_dict failed: {problem}")

    def _spawn(self) -> None:
        ours, theirs = socket.socketpair()
        for direction in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            ours.setsockopt(socket.SOL_SOCKET, direction, struct.pack("ll", SOCKET_SECONDS, 0))
        self._crash_log = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the worker)
        name, value = self._marker.split("=")
        environment = {key: text for key, text in os.environ.items() if key not in WITHHELD_VARIABLES}
        # A fixed hash seed: a reward that goes through a set gives the same result again after a restart.
        environment |= {name: value, "PYTHONHASHSEED": "0"}
        if not self.config.guard.gpu:
            environment["CUDA_VISIBLE_DEVICES"] = ""
        program = (
            f"import sys; sys.path[:] = {[path for path in sys.path if isinstance(path, str)]!r}\n"
            f"from components.rewards.worker import main; main({theirs.fileno()}, {self._crash_log.fileno()})"
        )
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 (our own interpreter and module)
                [sys.executable, "-c", program],
                stdin=subprocess.DEVNULL,
                stdout=2,
                pass_fds=(theirs.fileno(), self._crash_log.fileno()),
                env=environment,
                start_new_session=True,
            )
        self._connection = Connection(ours.detach())
        settings = {
            "rewards": self.config.to_json(),
            "contract": self._contract.to_json(),
            "memory_mb": self.config.guard.memory_mb,
            "seed": self._seed,
        }
        try:
            self._connection.send_bytes(pickle.dumps(settings))
            if not self._connection.poll(self.config.guard.start_timeout):
                raise PipelineError(
                    f"the reward worker was not ready in {self.config.guard.start_timeout:g} s; a reward may be "
                    "loading something large: raise rewards.guard.start_timeout"
                )
            answer = json.loads(self._connection.recv_bytes())
        except (EOFError, OSError, ValueError) as error:
            message, trace = self._obituary(error)
            self._kill()
            raise PipelineError(f"the reward worker could not start: a reward's import {message}\n{trace}") from None
        except PipelineError:
            self._kill()
            raise
        if answer["kind"] != "ready":
            self._kill()
            raise (BadInputError if answer["kind"] == "bad_input" else PipelineError)(answer["message"])
        if not self._rewards:
            self._rewards = [self._guarded(described) for described in answer["rewards"]]
            self._stateful = {described["name"] for described in answer["rewards"] if described["stateful"]}
            self._states = answer["states"]

    def _kill(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._process is not None:
            kill_tree(self._process, self._marker)
            self._process = None
        if self._crash_log is not None:
            self._crash_log.close()
            self._crash_log = None

    # ---- as TRL sees it ----

    def _guarded(self, described: Mapping[str, Any]) -> Reward:
        fields = {key: value for key, value in described.items() if key != "stateful"}
        fields["aspect"] = Aspect(fields["aspect"]) if fields["aspect"] else None
        fields["columns"] = tuple(fields["columns"])
        fields["optional_columns"] = tuple(fields["optional_columns"])
        name = fields["name"]

        def function(
            prompts: Sequence[Any],
            completions: Sequence[Any],
            log_extra: Callable[[str, list[Any]], None] | None = None,
            log_metric: Callable[[str, float], None] | None = None,
            trainer_state: Any = None,
            environments: Any = None,
            **columns: Sequence[Any],
        ) -> list[float | None]:
            scores = self._for(name, prompts, completions, columns, trainer_state)
            if log_extra is not None:
                for column, owner in self._extra_owner.items():
                    if owner == name:
                        log_extra(column, scores.extras[name].get(column, [None] * len(completions)))
            if log_metric is not None:
                for metric, value in scores.metrics[name]:
                    log_metric(metric, value)
                log_metric(f"errors/{name}", scores.errors[name] / max(1, len(completions)))
            return list(scores.values[name])

        function.__name__ = function.__qualname__ = name
        return replace(Reward(name=name, weight=fields["weight"], function=function, aspect=None, columns=()), **fields)

    def _for(
        self,
        name: str,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        columns: Mapping[str, Sequence[Any]],
        trainer_state: Any,
    ) -> Scores:
        """The scores of this batch: TRL calls each reward with the same lists, and the first call scores them all."""
        with self._lock:
            memo = self._memo
            if memo is None or not memo.holds(name, prompts, completions, columns):
                scores = self._score(prompts, completions, columns, trainer_state)
                memo = self._memo = _Memo(prompts, completions, dict(columns), scores)
            memo.read.add(name)
            if len(memo.read) == len(self._rewards):
                self._memo = None
            return memo.scores


@dataclass
class _Memo:
    """Scores of the batch last seen; it holds the lists themselves, so that no other list can take their place."""

    prompts: Sequence[Any]
    completions: Sequence[Any]
    columns: dict[str, Sequence[Any]]
    scores: Scores
    read: set[str] = field(default_factory=set)

    def holds(
        self, name: str, prompts: Sequence[Any], completions: Sequence[Any], columns: Mapping[str, Sequence[Any]]
    ) -> bool:
        return (
            name not in self.read
            and prompts is self.prompts
            and completions is self.completions
            and columns.keys() == self.columns.keys()
            and all(values is self.columns[key] for key, values in columns.items())
        )


def _reply(message: bytes, reward: int) -> dict[str, Any]:
    """The worker's next reply; ValueError when it is none, since a reward can write on every file of its process."""
    reply = json.loads(message)
    if not isinstance(reply, dict) or reply.get("reward") != reward:
        raise ValueError("not the reply that was asked for")
    return reply


def _messages(completion: Any) -> Any:
    """A completion as rewards take it: chat messages."""
    return [{"role": "assistant", "content": completion}] if isinstance(completion, str) else completion


def _plain_state(state: Any) -> dict[str, Any] | None:
    """TrainerState's plain fields; its log history is long and stays behind."""
    if state is None:
        return None
    return {
        key: value for key, value in vars(state).items() if value is None or isinstance(value, bool | int | float | str)
    }

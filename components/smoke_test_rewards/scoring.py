"""Runs rewards on completions of chosen rows, through the guard, in batches small enough that a limit means something.

Used by `data_checks`, by the trap test and by the signal test. Whatever a reward does (hangs, crashes, returns text),
the guard contains; here it comes out as problems with the completion that caused them.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Self

from components.contract.config import ContractConfig
from components.rewards.build import Reward
from components.rewards.config import RewardsConfig
from components.rewards.guard import FailureKind, RewardGuard
from components.smoke_test_rewards.config import SmokeTestConfig
from components.smoke_test_rewards.traps import Row

BATCH = 16
"""Completions scored at once."""
PASSED_BY_TRAINER = frozenset(
    {"prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric", "environments"}
)
"""What TRL's trainer hands to rewards by itself."""
DROPPED_COLUMNS = frozenset({"prompt", "completion", "completion_ids"})
"""Dataset columns that TRL's trainer never hands to a reward (GRPOTrainer._calculate_rewards, 1.16)."""
_CHARACTERS_A_TOKEN = 4
_WARM_UP_SECONDS = 20.0  # a new worker's first batch may load packages (sympy, a model)
_START_OF_TRAINING = SimpleNamespace(
    global_step=0, max_steps=1, epoch=0.0, num_train_epochs=1, is_world_process_zero=True, is_local_process_zero=True
)
"""What rewards that ask for `trainer_state` see."""


@dataclass(frozen=True)
class Tried:
    """One completion of one row.

    Attributes:
        row: the row.
        text: the completion.
        shown: what to call it in a sentence.
        token_ids: its tokens where they are known; otherwise a stand-in of about the right length is made.
    """

    row: Row
    text: str
    shown: str
    token_ids: Sequence[int] | None = None


@dataclass(frozen=True)
class Problem:
    """A reward that failed on a completion.

    Attributes:
        reward: its name.
        kind: the guard's name for how.
        message: what happened.
        tried: the completion it failed on.
        traceback: of the reward's own code; empty when there is none.
    """

    reward: str
    kind: FailureKind
    message: str
    tried: Tried
    traceback: str = ""


@dataclass
class Scored:
    """Scores of completions, in their order.

    Attributes:
        values: reward name -> one score a completion; None where it does not apply or any reward failed.
        problems: what failed.
        seconds: reward name -> time in the worker, all completions together.
    """

    values: dict[str, list[float | None]]
    problems: list[Problem] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)


class Bench:
    """The rewards under test in their guard; a context manager. Rewards that fail are taken off it."""

    def __init__(self, rewards: RewardsConfig, contract: ContractConfig, smoke_test: SmokeTestConfig) -> None:
        """Nothing is started yet.

        Args:
            rewards: the section. A batch may take `BATCH` times what one completion may, or the guard's own limit where
                that is less.
            contract: the section; completions are given whole, so its prefill is left out.
            smoke_test: limits.
        """
        self.config = rewards
        self._section = rewards
        self._limit = min(rewards.guard.timeout, max(1.0, BATCH * smoke_test.seconds_per_completion))
        self._first_limit = min(rewards.guard.timeout, max(self._limit, _WARM_UP_SECONDS))
        self.contract = contract.model_copy(update={"prefill": ""})
        self._guard: RewardGuard | None = None

    def __enter__(self) -> Self:
        self._open()
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    @property
    def rewards(self) -> list[Reward]:
        """The rewards on the bench, in the config's order."""
        return self._guard.rewards if self._guard else []

    @property
    def names(self) -> list[str]:
        """Their names."""
        return [reward.name for reward in self.rewards]

    def drop(self, names: Collection[str]) -> None:
        """Go on without some rewards."""
        self.use([name for name in self.names if name not in names])

    def use(self, names: Sequence[str]) -> None:
        """Go on with these rewards of the section, in a new worker where they are others than now."""
        if list(names) == self.names:
            return
        self._close()
        if names:
            self.config = self._section.only(list(names))
            self._open()

    def score(self, tried: Sequence[Tried]) -> Scored:
        """Score completions in batches, in their order.

        Args:
            tried: the completions; those of one row stand together.
        """
        scored = Scored({name: [] for name in self.names}, seconds=dict.fromkeys(self.names, 0.0))
        for start in range(0, len(tried), BATCH) if self._guard else ():
            self._score_batch(tried[start : start + BATCH], scored)
        return scored

    def _score_batch(self, batch: Sequence[Tried], scored: Scored) -> None:
        if self._guard is None:
            return
        restarts = self._guard.restarts
        scores = self._guard.score(
            [item.row.prompt for item in batch],
            [[{"role": "assistant", "content": item.text}] for item in batch],
            _columns(batch),
            trainer_state=_START_OF_TRAINING,
        )
        for name in self.names:
            scored.values[name].extend(scores.values[name])
            scored.seconds[name] += scores.seconds_by_reward[name]
        scored.problems.extend(
            Problem(failure.reward, failure.kind, failure.message, batch[failure.index], failure.traceback)
            for failure in scores.failures
        )
        self._set_limit(self._limit if self._guard.restarts == restarts else self._first_limit)

    def _set_limit(self, seconds: float) -> None:
        if self._guard is not None:
            limits = self.config.guard.model_copy(update={"timeout": seconds})
            self._guard.config = self.config.model_copy(update={"guard": limits})

    def _open(self) -> None:
        self._guard = RewardGuard(self.config, self.contract, enforce=False).start()
        self._set_limit(self._first_limit)

    def _close(self) -> None:
        if self._guard is not None:
            self._guard.close()
            self._guard = None


def _columns(batch: Sequence[Tried]) -> Mapping[str, Sequence[Any]]:
    names = [name for name in batch[0].row.columns if name not in DROPPED_COLUMNS]
    columns: dict[str, list[Any]] = {name: [item.row.columns.get(name) for item in batch] for name in names}
    columns["completion_ids"] = [
        list(range(len(item.text) // _CHARACTERS_A_TOKEN + 1)) if item.token_ids is None else list(item.token_ids)
        for item in batch
    ]
    return columns

"""From the `rewards:` section to functions in TRL's signature.

`build_rewards` is what the guard's worker calls, and what a notebook or a bare `GRPOTrainer` uses without the guard.
Nothing here limits time or catches errors; that is the guard's.
"""

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from components.errors import BadInputError
from components.rewards.config import RewardConfig, RewardsConfig, nearest
from components.rewards.definition import LIBRARY, Aspect, Definition, Scorer
from components.rewards.load import load_own, parameters

if TYPE_CHECKING:
    from components.contract import Contract

Values = list[float | None]


@dataclass(frozen=True)
class Reward:
    """One reward of a run, ready to call.

    Attributes:
        name: its key in the config; metrics and columns carry it.
        weight: factor in the total.
        function: `f(prompts, completions, **columns) -> list[float | None]`, its `__name__` is `name`.
        aspect: what it judges; None for a person's own that does not say.
        columns: dataset columns it cannot do without.
        optional_columns: dataset columns it uses when they are there.
        description: one line.
        low: smallest value it returns, None when unknown.
        high: largest value it returns, None when unknown.
        own: True for a person's own code.
        reads_anything: True when it takes every column (`**kwargs`) and may use any.
        whole_batch: True when a value depends on the other completions of the batch.
        random: True when equal completions may score differently.
    """

    name: str
    weight: float
    function: Callable[..., Values]
    aspect: Aspect | None
    columns: tuple[str, ...]
    optional_columns: tuple[str, ...] = ()
    description: str = ""
    low: float | None = None
    high: float | None = None
    own: bool = False
    reads_anything: bool = False
    whole_batch: bool = False
    random: bool = False


def build_rewards(config: RewardsConfig, contract: "Contract") -> list[Reward]:
    """The rewards of a config, in its order.

    Args:
        config: the section; defaults and presets are resolved here.
        contract: what a response looks like and when two answers are equal.

    Returns:
        One `Reward` for each; their functions work in a bare `GRPOTrainer`
        (`reward_funcs=[r.function ...]`, `reward_weights=[r.weight ...]`).

    Raises:
        BadInputError: when a person's own reward cannot be loaded, or this machine lacks what a reward needs.
    """
    return [_build(name, reward, config.weight(name), contract) for name, reward in config.rewards().items()]


def library_reward(name: str, contract: "Contract | None" = None, **options: Any) -> Reward:
    """One reward of the library by name, for a notebook or a bare trainer.

    Args:
        name: its name in the reference table.
        contract: the task contract; default: the reasoning and answer tags.
        options: its settings.

    Raises:
        BadInputError: when the library has no such reward.
    """
    if contract is None:
        from components.contract import default_contract

        contract = default_contract()
    if name not in LIBRARY:
        raise BadInputError(f"reward {name!r} is not in the library: {nearest(name, list(LIBRARY))}")
    config = RewardsConfig.model_validate({name: {"options": options}})
    return build_rewards(config, contract)[0]


def completion_text(completion: Any) -> str:
    """The text of a completion as TRL passes it.

    Args:
        completion: a string, or chat messages of which the last assistant message counts; its content may be a list
            of content blocks.

    Returns:
        The text, empty for a message without any.
    """
    if isinstance(completion, str):
        return completion
    for message in reversed(completion):
        if message.get("role", "assistant") == "assistant":
            content = message.get("content")
            if isinstance(content, list):
                return "".join(block.get("text") or "" for block in content if block.get("type") == "text")
            return content or ""
    return ""


def with_prefill(completion: Any, prefill: str) -> Any:
    """A completion with what the chat template had already opened put back in front, as a user sees it."""
    if isinstance(completion, str):
        return prefill + completion
    messages = [dict(message) for message in completion]
    for message in messages:
        if message.get("role", "assistant") == "assistant" and isinstance(message.get("content"), str):
            message["content"] = prefill + message["content"]
            break
    return messages


def _build(name: str, reward: RewardConfig, weight: float, contract: "Contract") -> Reward:
    definition = reward.library(name)
    if definition is not None:
        return _from_library(name, reward, weight, definition, contract)
    return _from_own(name, reward, weight, contract.config.prefill)


def _from_library(
    name: str, reward: RewardConfig, weight: float, definition: Definition, contract: "Contract"
) -> Reward:
    scorer = definition.build(contract, definition.options.model_validate(reward.options))
    columns = tuple(reward.columns.get(column, column) for column in definition.columns)
    optional = tuple(reward.columns.get(column, column) for column in definition.optional)
    return Reward(
        name=name,
        weight=weight,
        function=_batched(name, scorer, columns, _threads() if definition.concurrent else 1),
        aspect=reward.aspect or definition.aspect,
        columns=tuple(column for column in columns if column not in optional),
        optional_columns=optional,
        description=definition.description,
        low=definition.low,
        high=definition.high,
        whole_batch=reward.whole_batch,
        random=reward.random,
    )


def _threads() -> int:
    """Twice the processors: some of the processes waited for sleep."""
    return max(4, 2 * (os.cpu_count() or 1))


def _batched(name: str, scorer: Scorer, columns: tuple[str, ...], threads: int) -> Callable[..., Values]:
    def function(prompts: Sequence[Any], completions: Sequence[Any], **kwargs: Any) -> Values:
        texts = [completion_text(completion) for completion in completions]
        missing = [None] * len(texts)
        arguments = [texts, *(kwargs[column] if kwargs.get(column) is not None else missing for column in columns)]
        if threads == 1:
            return list(map(scorer, *arguments))
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(scorer, *arguments))

    function.__name__ = function.__qualname__ = name
    return function


def _from_own(name: str, reward: RewardConfig, weight: float, prefill: str) -> Reward:
    target, options = load_own(name, reward)
    required, optional, anything = parameters(target)
    source = {parameter: reward.columns.get(parameter, parameter) for parameter in (*required, *optional)}
    declared = getattr(target, "aspect", None)
    if declared is not None and declared not in list(Aspect):
        raise BadInputError(
            f"rewards.{name}: its aspect is {declared!r}; {nearest(str(declared), [str(a) for a in Aspect])}"
        )
    return Reward(
        name=name,
        weight=weight,
        function=_Own(name, target, options, reward.columns, prefill),
        aspect=reward.aspect or (Aspect(declared) if declared else None),
        columns=tuple(source[parameter] for parameter in required if parameter not in options),
        optional_columns=tuple(source[parameter] for parameter in optional if parameter not in options),
        description=(getattr(target, "__doc__", None) or "").strip().split("\n", 1)[0].rstrip("."),
        own=True,
        reads_anything=anything,
        whole_batch=reward.whole_batch or hasattr(target, "state_dict"),
        random=reward.random,
    )


class _Own:
    """A person's own reward under its configured name: options bound, columns renamed, only what it takes passed."""

    def __init__(
        self,
        name: str,
        target: Callable[..., Any],
        options: Mapping[str, Any],
        renamed: Mapping[str, str],
        prefill: str,
    ) -> None:
        self.__name__ = name
        self.target = target
        self._options = dict(options)
        self._renamed = dict(renamed)
        self._prefill = prefill
        kinds = inspect.signature(target).parameters
        anything = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in kinds.values())
        self._takes = None if anything else frozenset(kinds)

    def __call__(self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> Any:
        for parameter, column in self._renamed.items():
            if column in columns:
                columns[parameter] = columns[column]
        if self._prefill:
            completions = [with_prefill(completion, self._prefill) for completion in completions]
        arguments = {"prompts": prompts, "completions": completions, **columns, **self._options}
        if self._takes is not None:
            arguments = {key: value for key, value in arguments.items() if key in self._takes}
        result = self.target(**arguments)
        if inspect.iscoroutine(result):
            import asyncio

            return asyncio.run(result)
        return result

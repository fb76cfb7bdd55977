"""Runs in the guard's worker: a stand-in for one reward that reports whether the reward changes its inputs.

`data_checks` puts it in the place of each reward of a person's own, so that the reward itself is loaded and contained
exactly as in training. TRL hands the same lists to every reward of a batch: one that changes them changes what the next
ones see.
"""

from copy import deepcopy
from functools import lru_cache
from typing import Any

from components.contract import default_contract
from components.rewards.build import build_rewards
from components.rewards.config import RewardsConfig


def changes_inputs(prompts: Any, completions: Any, wrapped: str, **columns: Any) -> list[float]:
    """1 for every completion when the wrapped reward changes prompts, completions or columns, else 0.

    Args:
        prompts: as TRL passes them.
        completions: as TRL passes them.
        wrapped: JSON of a rewards section with one reward.
        columns: what else the trainer passes.
    """
    reward = _load(wrapped)
    inputs = {
        "prompts": prompts,
        "completions": completions,
        **{name: values for name, values in columns.items() if isinstance(values, list)},
    }
    before = deepcopy(inputs)
    reward(prompts=prompts, completions=completions, **columns)
    return [float(inputs != before)] * len(before["completions"])


@lru_cache
def _load(wrapped: str) -> Any:
    # A person's own reward does not see the contract, so any will do.
    return build_rewards(RewardsConfig.from_json(wrapped), default_contract())[0].function

"""When training stops by itself: rules over the metrics TRL logs, as plain functions of their history.

Each rule looks at the logged rows so far and returns what it saw and what to try, or None. callbacks.py runs them after
every logged step and ends the training with the first sentence.
"""

import math
from collections.abc import Mapping, Sequence

from components.train_grpo.config import GuardsConfig

History = Sequence[Mapping[str, float]]

SMOOTHING_ROWS = 10
"""Logged rows over which the reward is averaged before it is compared with its start."""


def non_finite(history: History) -> str | None:
    """A NaN or infinity in loss, gradient or reward.

    Args:
        history: logged rows, oldest first.
    """
    row = history[-1]
    for name in ("loss", "grad_norm", "reward"):
        value = row.get(name)
        if value is not None and not math.isfinite(value):
            return (
                f"{name} became {value} at step {row['step']:.0f}; the last good checkpoint is kept. Try a lower "
                "training.learning_rate, training.max_grad_norm: 0.1, or model.dtype: float32"
            )
    return None


def constant_groups(history: History, guards: GuardsConfig) -> str | None:
    """Groups without any spread in reward: nothing can be learned from them.

    Args:
        history: logged rows, oldest first.
        guards: thresholds.
    """
    last = history[-guards.constant_groups_steps :]
    if guards.constant_groups_steps == 0 or len(last) < guards.constant_groups_steps:
        return None
    if any(row.get("frac_reward_zero_std", 0.0) < guards.constant_groups_share for row in last):
        return None
    reward, first = last[-1].get("reward", 0.0), history[0].get("reward", 0.0)
    seen = (
        f"for {len(last)} logged steps at least {guards.constant_groups_share:.0%} of the groups had equal rewards "
        f"(reward {reward:.3f}, at the start {first:.3f}), so nothing more is learned"
    )
    if reward > first:
        return f"{seen}: the reward is saturated. Stop earlier (training.max_steps), or add harder rows or rewards"
    return (
        f"{seen}: the policy has collapsed or never found a reward. Try a lower training.learning_rate, a higher "
        "training.temperature, more training.num_generations, or a reward with partial credit"
    )


def reward_below_start(history: History, guards: GuardsConfig) -> str | None:
    """The smoothed reward fell clearly below where it began.

    Args:
        history: logged rows, oldest first.
        guards: thresholds.
    """
    if guards.reward_drop == 0 or len(history) < 3 * SMOOTHING_ROWS:
        return None
    rewards = [row["reward"] for row in history if "reward" in row and math.isfinite(row["reward"])]
    if len(rewards) < 3 * SMOOTHING_ROWS:
        return None
    start = sum(rewards[:SMOOTHING_ROWS]) / SMOOTHING_ROWS
    now = sum(rewards[-SMOOTHING_ROWS:]) / SMOOTHING_ROWS
    spread = max(rewards) - min(rewards)
    if spread > 0 and start - now > guards.reward_drop * max(spread, abs(start)):
        return (
            f"the reward fell from {start:.3f} to {now:.3f} (means of {SMOOTHING_ROWS} logged steps): training makes "
            "the policy worse. Try a lower training.learning_rate or training.beta: 0.04"
        )
    return None


def all_clipped(history: History, guards: GuardsConfig) -> str | None:
    """Every completion hits the length limit: none is ever finished.

    Args:
        history: logged rows, oldest first.
        guards: thresholds.
    """
    last = history[-guards.clipped_steps :]
    if guards.clipped_steps == 0 or len(last) < guards.clipped_steps:
        return None
    if all(row.get("completions/clipped_ratio", 0.0) >= 1.0 for row in last):
        return (
            f"for {len(last)} logged steps every completion hit training.max_completion_length: none is finished, so "
            "none can be right. Raise it, or check that the model emits its end-of-turn token"
        )
    return None


def high_kl(history: History, guards: GuardsConfig) -> str | None:
    """The policy moved far from its reference model (a warning, not a stop).

    Args:
        history: logged rows, oldest first.
        guards: thresholds.
    """
    kl = history[-1].get("kl")
    if guards.kl_limit and kl is not None and kl > guards.kl_limit:
        return f"kl is {kl:.3f}, above {guards.kl_limit}: far from the reference model; consider a higher training.beta"
    return None


def first_stop(history: History, guards: GuardsConfig) -> str | None:
    """The first rule that ends the training, as one sentence.

    Args:
        history: logged rows, oldest first.
        guards: thresholds.
    """
    return (
        non_finite(history)
        or constant_groups(history, guards)
        or all_clipped(history, guards)
        or reward_below_start(history, guards)
    )

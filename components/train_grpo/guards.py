"""When training stops by itself: rules over the metrics TRL logs, as plain functions of their history.

Each rule looks at the logged rows so far and returns what it saw and what to try, or None. callbacks.py runs them after
every logged step and ends the training with the first sentence.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import median

from components.train_grpo.config import GuardsConfig

History = Sequence[Mapping[str, float]]

SMOOTHING_ROWS = 10
"""Logged rows over which the reward is averaged before it is compared with its start."""

SATURATED_SHARE = 0.9
"""Share of the highest possible reward from which constant groups mean that there is nothing left to gain."""

IDENTICAL_GROUPS = "completions/identical_groups"
"""Metric that trainer.py logs: share of groups that are one completion G times over."""

HIGHEST_REWARD = "highest_reward"
"""Metric that trainer.py logs: the reward of a completion that earns 1 on every reward that is no penalty."""


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

    Tells three causes apart: a saturated reward (it rose, or is near the highest possible), a collapsed policy (the
    completions are identical too), and a policy that never found a reward (they differ).

    Args:
        history: logged rows, oldest first.
        guards: thresholds.
    """
    last = _last(history, guards.constant_groups_steps)
    if not last or any(row.get("frac_reward_zero_std", 0.0) < guards.constant_groups_share for row in last):
        return None
    reward, first = last[-1].get("reward", 0.0), history[0].get("reward", 0.0)
    highest = last[-1].get(HIGHEST_REWARD)
    seen = (
        f"for {len(last)} logged steps at least {guards.constant_groups_share:.0%} of the groups had equal rewards "
        f"(reward {reward:.3f}, at the start {first:.3f}), so nothing more is learned"
    )
    if reward > first or (highest is not None and highest > 0 and reward >= SATURATED_SHARE * highest):
        return f"{seen}: the reward is saturated. Stop earlier (training.max_steps), or add harder rows or rewards"
    if all(row.get(IDENTICAL_GROUPS, 0.0) >= guards.identical_share for row in last):
        return (
            f"{seen}: the policy has collapsed, every group is one completion over and over. Try a lower "
            "training.learning_rate, training.beta: 0.04, or a higher training.temperature"
        )
    return (
        f"{seen}: the policy has collapsed or never found a reward. Try a lower training.learning_rate, a higher "
        "training.temperature, more training.num_generations, a reward with partial credit, or a cold start (stages)"
    )


def identical_completions(history: History, guards: GuardsConfig) -> str | None:
    """Nearly every group is one completion G times over.

    Args:
        history: logged rows, oldest first.
        guards: thresholds.
    """
    last = _last(history, guards.identical_steps)
    if not last or any(row.get(IDENTICAL_GROUPS, 0.0) < guards.identical_share for row in last):
        return None
    return (
        f"for {len(last)} logged steps the completions of at least {guards.identical_share:.0%} of the groups were "
        "identical: nothing is left to compare. Try a higher training.temperature, a lower training.learning_rate, or "
        "stop earlier (training.max_steps)"
    )


def entropy_collapse(history: History, guards: GuardsConfig) -> str | None:
    """The policy hardly ever chooses anything but one token.

    Args:
        history: logged rows, oldest first.
        guards: thresholds.
    """
    last = _last(history, guards.entropy_steps)
    if not last or any(row.get("entropy", math.inf) >= guards.entropy_floor for row in last):
        return None
    first = next((row["entropy"] for row in history if "entropy" in row), math.nan)
    return (
        f"for {len(last)} logged steps the entropy stayed below {guards.entropy_floor} nats "
        f"(now {last[-1]['entropy']:.5f}, at the start {first:.3f}): the policy no longer explores. Try a lower "
        "training.learning_rate, a higher training.temperature, or training.beta: 0.04"
    )


def step_time_creep(history: History, guards: GuardsConfig) -> str | None:
    """Steps take much longer than at the start (a warning, not a stop).

    Args:
        history: logged rows, oldest first.
        guards: thresholds.
    """
    rows = [row for row in history if "step_time" in row]
    if guards.step_time_factor == 0 or len(rows) < 3 * SMOOTHING_ROWS:
        return None
    # The first row holds warm-up (compilation, caches), so it is left out.
    early, late = rows[1 : SMOOTHING_ROWS + 1], rows[-SMOOTHING_ROWS:]
    before, now = (median(row["step_time"] for row in part) for part in (early, late))
    if before <= 0 or now < guards.step_time_factor * before:
        return None
    lengths = [median(row.get("completions/mean_length", 0.0) for row in part) for part in (early, late)]
    grown = lengths[1] > 1.5 * lengths[0] > 0
    cause = (
        f"completions grew from {lengths[0]:.0f} to {lengths[1]:.0f} tokens; a length reward or a smaller "
        "training.max_completion_length bounds them"
        if grown
        else "completions did not grow, so look at the machine: memory (swap, fragmentation), other jobs, a slow reward"
    )
    return f"steps take {now:.2f} s, at the start {before:.2f} s: {cause}"


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
    last = _last(history, guards.clipped_steps)
    if last and all(row.get("completions/clipped_ratio", 0.0) >= 1.0 for row in last):
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
        or identical_completions(history, guards)
        or all_clipped(history, guards)
        or entropy_collapse(history, guards)
        or reward_below_start(history, guards)
    )


def warnings(history: History, guards: GuardsConfig) -> dict[str, str]:
    """What is worth a word and no stop: one sentence by the guard's name.

    Args:
        history: logged rows, oldest first.
        guards: thresholds.
    """
    found = {"kl": high_kl(history, guards), "step_time": step_time_creep(history, guards)}
    return {name: sentence for name, sentence in found.items() if sentence}


def _last(history: History, steps: int) -> History:
    """The last so many rows; nothing when there are fewer, or when the guard is off (0)."""
    return history[-steps:] if 0 < steps <= len(history) else ()

"""Is there anything to learn from? Figures over the rewards of G sampled completions for each of K prompts.

Called by `smoke_test_rewards` and `grpo rewards sample` with scores that the guard gave. Plain arithmetic: no numpy, no
torch. GRPO learns from differences inside a group only, so a group in which every completion has the same total teaches
nothing; the share of such groups is the figure that decides.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev

from components.smoke_test_rewards.config import SmokeTestConfig
from components.smoke_test_rewards.findings import Finding

_SAME = 1e-6  # totals closer than this are one and the same (float32 in training)


@dataclass(frozen=True)
class RewardSignal:
    """One reward over all sampled completions.

    Attributes:
        name: the reward's.
        weight: in the total.
        mean: over the completions it applies to; None when it applies to none.
        spread: standard deviation over the same.
        lowest: least score given.
        highest: highest score given.
        applies: share of completions with a score (not None), 0 to 1.
        constant_share: share of groups in which it gives one and the same score, 0 to 1.
        share_of_variance: its part of the total's variance within groups; the parts of all rewards sum to 1. None when
            there is no such variance.
    """

    name: str
    weight: float
    mean: float | None
    spread: float
    lowest: float | None
    highest: float | None
    applies: float
    constant_share: float
    share_of_variance: float | None


@dataclass(frozen=True)
class SampledCompletion:
    """One sampled completion with its rewards.

    Attributes:
        text: as the user sees it.
        tokens: generated.
        truncated: whether it hit the token limit.
        scores: reward name -> score, None where it does not apply or failed.
        total: weighted sum of the scores that are there; None when there are none.
    """

    text: str
    tokens: int
    truncated: bool
    scores: Mapping[str, float | None]
    total: float | None


@dataclass(frozen=True)
class Group:
    """The completions of one prompt.

    Attributes:
        label: of the row.
        prompt: the user's message.
        gold: the gold answer.
        completions: G of them.
    """

    label: str
    prompt: str
    gold: str
    completions: tuple[SampledCompletion, ...]

    @property
    def spread(self) -> float:
        """Standard deviation of the totals; 0 when there are fewer than two."""
        totals = [completion.total for completion in self.completions if completion.total is not None]
        return pstdev(totals) if len(totals) > 1 else 0.0

    @property
    def constant(self) -> bool:
        """Whether nothing can be learned from it."""
        return self.spread < _SAME


@dataclass(frozen=True)
class Signal:
    """What K groups of G completions say.

    Attributes:
        groups: all of them.
        temperature: they were sampled at.
        constant_share: share of groups without variance, 0 to 1.
        mean_total: over all completions with a total; None when there are none.
        mean_spread: mean over groups of the standard deviation of the total.
        truncated_share: share of completions that hit the token limit.
        distinct_share: share of distinct texts in a group, on average.
        mean_tokens: a completion.
        rewards: one entry a reward.
        correlations: (reward, reward, Pearson's r) for each pair where both vary.
    """

    groups: tuple[Group, ...]
    temperature: float
    constant_share: float
    mean_total: float | None
    mean_spread: float
    truncated_share: float
    distinct_share: float
    mean_tokens: float
    rewards: tuple[RewardSignal, ...]
    correlations: tuple[tuple[str, str, float], ...]


def weighted_total(scores: Mapping[str, float | None], weights: Mapping[str, float]) -> float | None:
    """The total as TRL sums it: rewards that are None count as nothing; None when all are."""
    parts = [weights[name] * score for name, score in scores.items() if score is not None]
    return math.fsum(parts) if parts else None


def measure_signal(groups: Sequence[Group], weights: Mapping[str, float], temperature: float) -> Signal:
    """Figures over sampled groups.

    Args:
        groups: at least one, each with at least one completion.
        weights: reward name -> weight, in the config's order.
        temperature: of the sampling, for the report.
    """
    every = [completion for group in groups for completion in group.completions]
    totals = [completion.total for completion in every if completion.total is not None]
    variance = math.fsum(_covariance(group, None, weights) for group in groups)
    rewards = tuple(_reward_signal(name, groups, weights, variance) for name in weights)
    names = list(weights)
    pairs = [(a, b) for index, a in enumerate(names) for b in names[index + 1 :]]
    correlations = [(a, b, _correlation(every, a, b)) for a, b in pairs]
    return Signal(
        groups=tuple(groups),
        temperature=temperature,
        constant_share=fmean(group.constant for group in groups),
        mean_total=fmean(totals) if totals else None,
        mean_spread=fmean(group.spread for group in groups),
        truncated_share=fmean(completion.truncated for completion in every),
        distinct_share=fmean(len({c.text for c in group.completions}) / len(group.completions) for group in groups),
        mean_tokens=fmean(completion.tokens for completion in every),
        rewards=rewards,
        correlations=tuple((a, b, r) for a, b, r in correlations if r is not None),
    )


def judge_signal(signal: Signal, config: SmokeTestConfig, *, honest_total: float | None) -> list[Finding]:
    """Findings: too few groups that differ, a redundant pair, a reward that dominates, one that never applies.

    Args:
        signal: what was measured.
        config: its limits.
        honest_total: what an honest completion earns, to tell too easy from too hard; None when not known.
    """
    findings: list[Finding] = []
    count = sum(group.constant for group in signal.groups)
    seen = f"{count} of {len(signal.groups)} groups ({signal.constant_share:.0%}) have the same total throughout"
    if signal.constant_share >= config.max_constant_share:
        sentence = f"{seen}; the limit is {config.max_constant_share:.0%}: there is next to nothing to learn from"
        findings.append(Finding("signal/constant_groups", "failure", sentence, _what_helps(signal, honest_total)))
    elif signal.constant_share >= 0.75 * config.max_constant_share:
        sentence = f"{seen}: training will be slow"
        findings.append(Finding("signal/constant_groups", "warning", sentence, _what_helps(signal, honest_total)))
    for reward in signal.rewards:
        if reward.applies == 0:
            sentence = f"{reward.name}: gave no score to any of the sampled completions"
            findings.append(Finding(f"signal/{reward.name}_never_applies", "warning", sentence))
        share = reward.share_of_variance
        if share is not None and share >= config.dominant_share and len(signal.rewards) > 1:
            sentence = f"{reward.name}: makes up {share:.0%} of the differences within groups; the others hardly count"
            mend = "Lower its weight, or raise the others', unless that is meant."
            findings.append(Finding(f"signal/{reward.name}_dominates", "warning", sentence, mend))
    for first, second, correlation in signal.correlations:
        if correlation >= config.redundant_correlation:
            sentence = f"{first} and {second} say the same (correlation {correlation:.2f}): a redundant pair"
            mend = "Keep one of them; together they only weigh double."
            findings.append(Finding(f"signal/{first}_{second}_redundant", "warning", sentence, mend))
    return findings


def _what_helps(signal: Signal, honest_total: float | None) -> str:
    size = len(signal.groups[0].completions)
    if honest_total is not None and signal.mean_total is not None and signal.mean_total >= 0.9 * honest_total > 0:
        return "The base model earns nearly full marks already: take harder rows, or train for something else."
    advice = []
    if signal.distinct_share < 0.5:
        advice.append(f"a higher training.temperature (it is {signal.temperature:g}; most texts in a group are alike)")
    if signal.truncated_share > 0.5:
        advice.append(
            f"a larger training.max_completion_length ({signal.truncated_share:.0%} of the completions were cut off)"
        )
    advice.append("easier rows")
    advice.append("partial credit (an incremental_format or soft_format reward)")
    advice.append("an example in the system prompt (contract.examples) or a supervised first stage")
    if signal.distinct_share >= 0.5:
        advice.append(f"a higher training.temperature (it is {signal.temperature:g})")
    advice.append(f"a larger training.num_generations (G is {size})")
    return "What would help: " + "; ".join(advice) + "."


def _reward_signal(name: str, groups: Sequence[Group], weights: Mapping[str, float], variance: float) -> RewardSignal:
    every = [completion.scores[name] for group in groups for completion in group.completions]
    scores = [score for score in every if score is not None]
    constant = []
    for group in groups:
        own = [score for completion in group.completions if (score := completion.scores[name]) is not None]
        constant.append(len(own) < 2 or max(own) - min(own) < _SAME)
    part = math.fsum(_covariance(group, name, weights) for group in groups)
    return RewardSignal(
        name=name,
        weight=weights[name],
        mean=fmean(scores) if scores else None,
        spread=pstdev(scores) if scores else 0.0,
        lowest=min(scores, default=None),
        highest=max(scores, default=None),
        applies=len(scores) / len(every),
        constant_share=fmean(constant),
        share_of_variance=part / variance if variance > _SAME**2 else None,
    )


def _covariance(group: Group, name: str | None, weights: Mapping[str, float]) -> float:
    """Covariance, within one group, of a reward's weighted part (None: the total itself) with the total."""
    counted = [completion for completion in group.completions if completion.total is not None]
    totals = [completion.total or 0.0 for completion in counted]
    if len(totals) < 2:
        return 0.0
    parts = totals if name is None else [weights[name] * (completion.scores[name] or 0.0) for completion in counted]
    mean_part, mean_total = fmean(parts), fmean(totals)
    products = ((part - mean_part) * (total - mean_total) for part, total in zip(parts, totals, strict=True))
    return math.fsum(products) / len(totals)


def _correlation(completions: Sequence[SampledCompletion], first: str, second: str) -> float | None:
    """Pearson's r over the completions where both rewards gave a score; None when either does not vary."""
    pairs = [(c.scores[first], c.scores[second]) for c in completions]
    both = [(a, b) for a, b in pairs if a is not None and b is not None]
    if len(both) < 3:
        return None
    xs, ys = [a for a, _ in both], [b for _, b in both]
    spread = pstdev(xs) * pstdev(ys)
    if spread < _SAME**2:
        return None
    mean_x, mean_y = fmean(xs), fmean(ys)
    return math.fsum((x - mean_x) * (y - mean_y) for x, y in both) / len(both) / spread

"""Completions to samples: format, answer, correctness and rewards of each, all through the contract and the rewards.

Called by evaluate_holdout. Nothing is read or compared here by other means than the contract's. A reward that fails on
a completion leaves None there and is counted; it does not stop the evaluation.
"""

from collections.abc import Callable, Sequence
from typing import Any

from components.contract import Contract
from components.evaluate_holdout.questions import QuestionSet
from components.generation import Completion
from components.rewards.config import RewardsConfig

REWARD_BATCH = 128
"""Completions scored at once: the guard's time limit is for one batch."""

Sample = dict[str, Any]


def make_samples(
    questions: QuestionSet,
    prompts: Sequence[str],
    answers: Sequence[Sequence[Completion]],
    contract: Contract,
    decoding: str,
) -> list[Sample]:
    """One sample a completion, judged by the contract.

    Args:
        questions: what was asked.
        prompts: rendered texts, one a row.
        answers: completions, one list a row.
        contract: reads and compares.
        decoding: `greedy` or `sampled`.
    """
    samples = []
    for row, prompt, completions in zip(questions.rows, prompts, answers, strict=True):
        gold = str(row["answer"])
        kept = {name: value for name, value in row.items() if name != "prompt"}
        for index, completion in enumerate(completions):
            compliance = contract.check(completion.text)
            strict = contract.read_answer(completion.text) if compliance.strict else None
            lenient = contract.read_answer(completion.text, lenient=True)
            samples.append(
                {
                    **kept,
                    "set": questions.name,
                    "decoding": decoding,
                    "sample": index,
                    "prompt_text": prompt,
                    "prompt": row["prompt"],
                    "completion": completion.text,
                    "completion_ids": list(completion.ids),
                    "strict": compliance.strict,
                    "lenient": compliance.lenient,
                    "reasons": [str(reason) for reason in compliance.reasons],
                    "answer_read_strict": strict,
                    "answer_read_lenient": lenient,
                    "correct_strict": contract.equal(strict, gold),
                    "correct_lenient": contract.equal(lenient, gold),
                    "gold": gold,
                    "tokens": completion.tokens,
                    "truncated": completion.truncated,
                }
            )
    return samples


def add_rewards(
    samples: list[Sample],
    rewards: RewardsConfig,
    contract: Contract,
    on_progress: Callable[[int, int], None] | None = None,
) -> dict[str, int]:
    """Put `rewards.<name>` and `rewards.total` into every sample.

    Args:
        samples: changed in place; completions of one prompt lie side by side.
        rewards: the section.
        contract: the run's contract.
        on_progress: called with completions scored and in all.

    Returns:
        Completions each reward failed on, by name; empty when none did.
    """
    from components.rewards.guard import RewardGuard

    errors: dict[str, int] = {}
    with RewardGuard(rewards, contract.config, enforce=False) as guard:
        for start in range(0, len(samples), REWARD_BATCH):
            batch = samples[start : start + REWARD_BATCH]
            columns = {
                name: [sample.get(name) for sample in batch]
                for name in batch[0]
                if name not in {"prompt", "completion"} and not name.startswith("rewards.")
            }
            scores = guard.score(
                [sample["prompt"] for sample in batch],
                [[{"role": "assistant", "content": sample["completion"]}] for sample in batch],
                columns,
            )
            for index, sample in enumerate(batch):
                for name, values in scores.values.items():
                    sample[f"rewards.{name}"] = values[index]
                sample["rewards.total"] = scores.total[index]
            for name, count in scores.errors.items():
                if count:
                    errors[name] = errors.get(name, 0) + count
            if on_progress is not None:
                on_progress(min(start + REWARD_BATCH, len(samples)), len(samples))
    return errors

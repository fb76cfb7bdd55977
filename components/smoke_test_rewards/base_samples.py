"""Samples the base model in groups, as training would, and scores them: the material of the signal test.

Used by the step and by `grpo rewards sample`. Nothing is updated. The model comes through `components.generation`, so
this needs torch (or vLLM) and a model directory.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from components.contract import Contract
from components.generation import Sampling
from components.smoke_test_rewards.learning_signal import Group, SampledCompletion, weighted_total
from components.smoke_test_rewards.scoring import Bench, Problem, Tried
from components.smoke_test_rewards.traps import Row


@dataclass(frozen=True)
class DrawnCompletion:
    """A sampled completion before it is scored: its text with what the template prefilled, and its tokens."""

    text: str
    token_ids: Sequence[int]
    tokens: int
    truncated: bool


@dataclass(frozen=True)
class DrawnGroup:
    """The sampled completions of one row."""

    row: Row
    completions: Sequence[DrawnCompletion]


def generate_groups(
    model_directory: Path,
    contract: Contract,
    rows: Sequence[Row],
    sampling: Sampling,
    *,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[DrawnGroup]:
    """Sample completions of the base model, as training would.

    Args:
        model_directory: a Hugging Face directory with its tokenizer.
        contract: renders the prompts.
        rows: one group each.
        sampling: `n` completions a prompt.
        on_progress: called with completions done and in all.

    Raises:
        BadInputError: when the model cannot be loaded, or a prompt does not fit it.
    """
    from components.contract.tokenizer import load_tokenizer
    from components.generation import open_generator

    tokenizer = load_tokenizer(model_directory, contract)
    prefill = contract.config.prefill
    prompts = [contract.render(tokenizer, {"prompt": row.prompt}) for row in rows]
    with open_generator(model_directory) as generator:
        answers = generator.generate(prompts, sampling, on_progress)
    return [
        DrawnGroup(
            row,
            [
                DrawnCompletion(
                    text=prefill + answer.text,
                    token_ids=tokenizer(answer.text, add_special_tokens=False)["input_ids"],
                    tokens=answer.tokens,
                    truncated=answer.truncated,
                )
                for answer in group
            ],
        )
        for row, group in zip(rows, answers, strict=True)
    ]


def score_groups(
    bench: Bench, drawn: Sequence[DrawnGroup], weights: dict[str, float]
) -> tuple[list[Group], list[Problem]]:
    """Score sampled groups, each by itself, as training does.

    Args:
        bench: the rewards.
        drawn: the groups.
        weights: reward name -> weight, for the total.

    Returns:
        The groups with their scores, and what failed.
    """
    groups: list[Group] = []
    problems: list[Problem] = []
    for group in drawn:
        tried = [Tried(group.row, c.text, f"sampled `{c.text[:60]}`", c.token_ids) for c in group.completions]
        scored = bench.score(tried)
        problems += scored.problems
        completions = []
        for index, completion in enumerate(group.completions):
            scores = {name: scored.values[name][index] for name in weights}
            completions.append(
                SampledCompletion(
                    text=completion.text,
                    tokens=completion.tokens,
                    truncated=completion.truncated,
                    scores=scores,
                    total=weighted_total(scores, weights),
                )
            )
        groups.append(Group(group.row.label, _question(group.row), group.row.gold, tuple(completions)))
    return groups, problems


def _question(row: Row) -> str:
    return next((message["content"] for message in reversed(row.prompt) if message["role"] == "user"), "")

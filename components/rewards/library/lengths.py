"""Rewards for how long a response is."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from components.rewards.definition import Aspect, Scorer, library_entry
from components.sections import Section

if TYPE_CHECKING:
    from components.contract import Contract

WORD = re.compile(r"\S+")
Positive = Annotated[int, Field(gt=0)]


class LengthOptions(Section):
    """Settings of `length`."""

    minimum: Positive | None = None
    """Shortest length in full favour."""
    maximum: Positive | None = None
    """Longest length in full favour."""
    ideal: Positive | None = None
    """The one best length; minimum and maximum are then where the reward reaches 0 (default: 0 and twice the ideal)."""
    unit: Literal["words", "characters", "tokens"] = "words"
    """What is counted; tokens are known in training and evaluation, not for a text of your own."""
    of: Literal["completion", "answer"] = "completion"
    """What is measured: the whole completion, or the answer block (not in tokens)."""

    @model_validator(mode="after")
    def _order(self) -> Self:
        if self.minimum is None and self.maximum is None and self.ideal is None:
            raise ValueError("give at least one of minimum, maximum and ideal")
        bounds = [bound for bound in (self.minimum, self.ideal, self.maximum) if bound is not None]
        if bounds != sorted(bounds) or (self.ideal is not None and len(set(bounds)) != len(bounds)):
            raise ValueError(f"minimum {self.minimum}, ideal {self.ideal}, maximum {self.maximum} are not in order")
        if self.unit == "tokens" and self.of == "answer":
            raise ValueError("tokens are counted for the whole completion only: unit: words or of: completion")
        return self


@library_entry(aspect=Aspect.LENGTH, weight=0.2, optional=("completion_ids",), options=LengthOptions)
def length(contract: "Contract", options: LengthOptions) -> Scorer:
    """1 at the wanted length, falling linearly to 0 away from it.

    With an ideal: 1 there, 0 at minimum and maximum. Without: 1 from minimum to maximum, below it the share of the
    minimum that is there, above it falling to 0 at twice the maximum.
    """

    def measure(text: str, ids: Sequence[int] | None) -> int | None:
        if options.unit == "tokens":
            return None if ids is None else len(ids)
        subject = text if options.of == "completion" else contract.read_answer(text) or ""
        return len(subject) if options.unit == "characters" else sum(1 for _ in WORD.finditer(subject))

    def score(text: str, ids: Any) -> float | None:
        size = measure(text, ids)
        if size is None:
            return None
        if options.ideal is not None:
            low = options.minimum or 0
            high = options.maximum or 2 * options.ideal
            share = (
                (size - low) / (options.ideal - low)
                if size <= options.ideal
                else (high - size) / (high - options.ideal)
            )
            return max(0.0, share)
        if options.minimum is not None and size < options.minimum:
            return size / options.minimum
        if options.maximum is not None and size > options.maximum:
            return max(0.0, 2.0 - size / options.maximum)
        return 1.0

    return score


class OverlongOptions(Section):
    """Settings of `soft_overlong_punishment`."""

    max_completion_length: Positive
    """Longest completion in tokens: training.max_completion_length."""
    cache: Positive
    """Tokens before that in which the punishment grows from 0 to -1."""

    @model_validator(mode="after")
    def _order(self) -> Self:
        if self.cache > self.max_completion_length:
            raise ValueError(f"cache {self.cache} is longer than max_completion_length {self.max_completion_length}")
        return self


@library_entry(
    aspect=Aspect.LENGTH, low=-1.0, high=0.0, weight=0.5, optional=("completion_ids",), options=OverlongOptions
)
def soft_overlong_punishment(contract: "Contract", options: OverlongOptions) -> Scorer:
    """0 for a completion that ends in time, down to -1 for one that needs every token it may have.

    Equation 13 of DAPO (arXiv 2503.14476), the same values as `trl.rewards.get_soft_overlong_punishment`, which would
    bring torch to steps that have none. None where the number of tokens is not known.
    """
    start = options.max_completion_length - options.cache

    def score(text: str, ids: Any) -> float | None:
        if ids is None:
            return None
        over = len(ids) - start
        return 0.0 if over <= 0 else max(-1.0, -over / options.cache)

    return score

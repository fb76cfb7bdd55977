"""Rewards for the form of a response, all judged by the contract's own check."""

from typing import TYPE_CHECKING

from components.rewards.definition import Aspect, NoOptions, Scorer, library_entry

if TYPE_CHECKING:
    from components.contract import Contract


@library_entry(aspect=Aspect.FORMAT, weight=1.0)
def strict_format(contract: "Contract", options: NoOptions) -> Scorer:  # noqa: ARG001
    """1 when the whole response is in the contract's strict format, else 0."""

    def score(text: str) -> float:
        return 1.0 if contract.check(text).strict else 0.0

    return score


@library_entry(aspect=Aspect.FORMAT, weight=0.5)
def incremental_format(contract: "Contract", options: NoOptions) -> Scorer:  # noqa: ARG001
    """Partial credit for each piece of the format in its place; 1 only for the strict format."""

    def score(text: str) -> float:
        verdict = contract.check(text)
        if verdict.strict:
            return 1.0
        return 0.5 if verdict.lenient else 0.0

    return score

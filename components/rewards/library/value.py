"""Rewards for what the answer says. All of them read it through the contract; none of them reads it its own way."""

from typing import TYPE_CHECKING

from components.rewards.definition import Aspect, NoOptions, Scorer, library_entry

if TYPE_CHECKING:
    from components.contract import Contract


@library_entry(aspect=Aspect.VALUE, weight=2.0, columns=("answer",))
def correctness(contract: "Contract", options: NoOptions) -> Scorer:  # noqa: ARG001
    """1 when the one answer block equals the gold by the contract's rules, else 0."""

    def score(text: str, answer: str | None) -> float | None:
        if answer is None:
            return None
        read = contract.read_answer(text)
        return 1.0 if read is not None and contract.equal(read, str(answer)) else 0.0

    return score

"""The `gates` section: what a candidate must show on the holdout to be registered.

Read by judge_candidate. Imports pydantic only. Every gate is held against a bound of a confidence interval, never
against the estimate: a gate passes when the whole interval is on its good side, fails when the whole interval is on the
bad side, and is inconclusive otherwise.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from components.sections import Section

Share = Annotated[float, Field(ge=0, le=1)]


class GatesConfig(Section):
    """Gates between an evaluated candidate and the registry; null switches one off."""

    decoding: Literal["greedy", "sampled"] = "greedy"
    """Which completions are judged: take the decoding that will be served. `sampled` needs `evaluation.samples`."""

    min_format_compliance: Share | None = 0.8
    """Least share of completions strictly in the format."""

    accuracy_margin: Annotated[float, Field(ge=0, lt=1)] | None = 0.05
    """How much lenient accuracy (right, however it is said) may fall behind the base model: 0.05 is five points. A gain
    in form must not be bought with the task itself."""

    min_accuracy_gain: Annotated[float, Field(ge=-1, lt=1)] | None = 0.0
    """Strict accuracy (in the format and right) must exceed the base model's by more than this. 0 asks for proof of any
    improvement; null registers a candidate that is merely no worse."""

    max_truncation: Share | None = 0.1
    """Largest share of completions cut off at the token limit."""

    min_rows: Annotated[int, Field(ge=1)] = 100
    """Least number of holdout rows; with fewer the verdict is inconclusive at best."""

    confidence: Annotated[float, Field(ge=0.5, lt=1)] = 0.95
    """Of the two-sided intervals behind the gates; 0.95 errs one way in 2.5 of 100 cases for each gate."""

    @model_validator(mode="after")
    def _some_gate(self) -> Self:
        gates = (self.min_format_compliance, self.accuracy_margin, self.min_accuracy_gain, self.max_truncation)
        if all(gate is None for gate in gates):
            raise ValueError("every gate is null, so that anything would be registered; keep at least one")
        return self

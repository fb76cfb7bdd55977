"""Rewards for what the answer says. All of them read it through the contract; none of them reads it its own way."""

from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from components.errors import BadInputError
from components.rewards.definition import Aspect, NoOptions, Scorer, library_entry
from components.sections import Section

if TYPE_CHECKING:
    from components.contract import Contract

LONGEST_COMPARED = 20_000


@library_entry(aspect=Aspect.VALUE, weight=2.0, columns=("answer",))
def correctness(contract: "Contract", options: NoOptions) -> Scorer:
    """1 when the one answer block equals the gold by the contract's rules, else 0."""

    def score(text: str, answer: Any) -> float | None:
        if answer is None:
            return None
        read = contract.read_answer(text)
        return 1.0 if read is not None and contract.equal(read, str(answer)) else 0.0

    return score


class ExactMatchOptions(Section):
    """Settings of `exact_match`."""

    ignore_case: bool = False
    """Whether upper and lower case are the same."""


@library_entry(aspect=Aspect.VALUE, weight=1.0, columns=("answer",), options=ExactMatchOptions)
def exact_match(contract: "Contract", options: ExactMatchOptions) -> Scorer:
    """1 when the answer block is the gold character by character (white space aside), else 0."""

    def normal(text: str) -> str:
        joined = " ".join(text.split())
        return joined.casefold() if options.ignore_case else joined

    def score(text: str, answer: Any) -> float | None:
        if answer is None:
            return None
        read = contract.read_answer(text)
        return 1.0 if read is not None and normal(read) == normal(str(answer)) else 0.0

    return score


class FuzzyMatchOptions(Section):
    """Settings of `fuzzy_match`."""

    unit: Literal["characters", "words"] = "characters"
    """What is compared: characters for names and short phrases; words for sentences (the score is ROUGE-L's F1)."""
    threshold: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Similarity below this counts as 0."""


@library_entry(aspect=Aspect.VALUE, weight=0.5, columns=("answer",), options=FuzzyMatchOptions)
def fuzzy_match(contract: "Contract", options: FuzzyMatchOptions) -> Scorer:
    """How much of the answer block and the gold agree: 2 x longest common subsequence / both lengths.

    Computed by rapidfuzz (normalised Indel similarity); case and white space do not count. An answer longer than
    20,000 characters is 0. It does not apply to a gold that is a number: -1250 is not nearly 1250.
    """
    from components.contract.number import read_number

    try:
        from rapidfuzz.distance import Indel
    except ImportError as error:
        raise BadInputError("rewards: fuzzy_match needs the package rapidfuzz: pip install rapidfuzz") from error

    def score(text: str, answer: Any) -> float | None:
        if answer is None or read_number(str(answer)) is not None:
            return None
        read = contract.read_answer(text)
        if read is None or max(len(read), len(str(answer))) > LONGEST_COMPARED:
            return 0.0
        left, right = read.casefold().split(), str(answer).casefold().split()
        if options.unit == "words":
            similarity = Indel.normalized_similarity(left, right)
        else:
            similarity = Indel.normalized_similarity(" ".join(left), " ".join(right))
        return similarity if similarity >= options.threshold else 0.0

    return score


class NumericOptions(Section):
    """Settings of `numeric`."""

    absolute: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Largest difference that still counts as right."""
    relative: Annotated[float, Field(ge=0, lt=1)] = 0.01
    """The same as a share of the gold; the wider of the two holds."""
    falloff: Annotated[float, Field(ge=0, le=10)] = 0.0
    """Partial credit: outside the tolerance the reward falls from 0.5 to 0 at this share of the gold (0: none)."""


@library_entry(aspect=Aspect.VALUE, weight=1.0, columns=("answer",), options=NumericOptions)
def numeric(contract: "Contract", options: NumericOptions) -> Scorer:
    """1 when the answer block is a number within the tolerance of the gold, else 0 (or partial credit)."""
    from components.contract.number import read_number

    absolute, relative = Fraction(str(options.absolute)), Fraction(str(options.relative))
    falloff = Fraction(str(options.falloff))
    percent = contract.config.answer.percent

    def score(text: str, answer: Any) -> float | None:
        if answer is None:
            return None
        target = read_number(str(answer), percent)
        if target is None:
            return None
        read = contract.read_answer(text)
        said = read_number(read, percent) if read is not None else None
        if said is None:
            return 0.0
        gold, value = Fraction(target), Fraction(said)
        # Exact arithmetic: a difference of huge numbers must not overflow or vanish.
        difference = abs(value - gold)
        allowed = max(absolute, relative * abs(gold))
        if difference <= allowed:
            return 1.0
        reach = falloff * abs(gold)
        if difference >= reach or reach <= allowed:
            return 0.0
        return float(Fraction(1, 2) * (reach - difference) / (reach - allowed))

    return score


@library_entry(aspect=Aspect.VALUE, weight=2.0, columns=("answer",))
def latex_accuracy(contract: "Contract", options: NoOptions) -> Scorer:
    """1 when math-verify finds the answer block and the gold to be the same mathematical object, else 0.

    The contract's `latex` comparison, whatever kind of answer the contract has. Unlike `trl.rewards.accuracy_reward` it
    reads the answer block and nothing else, so a value mentioned in the reasoning earns nothing; it takes plain numbers
    too; and an expression that math-verify cannot finish equals nothing instead of stopping the run. None where the
    gold cannot be read.
    """
    from components.contract import build_contract
    from components.contract.config import AnswerConfig

    latex = build_contract(contract.config.model_copy(update={"answer": AnswerConfig(kind="latex"), "examples": ()}))

    def score(text: str, answer: Any) -> float | None:
        if answer is None or not latex.gold_is_readable(str(answer)):
            return None
        read = contract.read_answer(text)
        return 1.0 if read is not None and latex.equal(read, str(answer)) else 0.0

    return score

"""Rewards for the form of a response, judged by the contract's own check; none of them looks at the value."""

import importlib.util
import json
import re
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, field_validator

from components.contract.compliance import Reason
from components.contract.config import JsonFormat, R1Format, RegexFormat, XmlFormat
from components.errors import BadInputError
from components.rewards.definition import Aspect, NoOptions, Scorer, library_entry
from components.sections import Section

if TYPE_CHECKING:
    from components.contract import Contract


@library_entry(aspect=Aspect.FORMAT, weight=1.0)
def strict_format(contract: "Contract", options: NoOptions) -> Scorer:
    """1 when the whole response is in the contract's strict format, else 0."""

    def score(text: str) -> float:
        return 1.0 if contract.check(text).strict else 0.0

    return score


@library_entry(aspect=Aspect.FORMAT, weight=0.5)
def soft_format(contract: "Contract", options: NoOptions) -> Scorer:
    """1 for the strict format, 0.7 with text around it, 0.4 when an answer can be read at all, else 0."""

    def score(text: str) -> float:
        verdict = contract.check(text)
        if verdict.strict:
            return 1.0
        if not verdict.lenient:
            return 0.0
        return 0.7 if set(verdict.reasons) <= {Reason.EXTRA_TEXT} else 0.4

    return score


PIECES_WORTH = 0.8
"""What all pieces in their places are worth together; the rest is paid for the strict format only."""
OUTSIDE_WORTH = 0.3
OUTSIDE_CHARACTERS = 1_000
"""Text outside the pieces costs up to `OUTSIDE_WORTH`, in full from this many characters on."""
HOLLOW = frozenset({Reason.EMPTY, Reason.PLACEHOLDER})
MUDDLED = frozenset({Reason.WRONG_ORDER, Reason.NESTED})


@library_entry(aspect=Aspect.FORMAT, weight=0.5)
def incremental_format(contract: "Contract", options: NoOptions) -> Scorer:
    """Partial credit for each piece of the format in its place, at most 0.8; 1 only for the strict format.

    A piece (a tag, a key, a box, a fixed word) counts when it stands there exactly once and in order. Empty or
    placeholder content takes three quarters of the credit, disorder half, text outside the pieces up to 0.3.
    """
    pieces = _pieces(contract)

    def score(text: str) -> float:
        verdict = contract.check(text)
        if verdict.strict:
            return 1.0
        text = contract.config.prefill + text
        if not pieces:
            return 0.5 if verdict.lenient else 0.0
        places = [(piece.start(text), piece) for piece in pieces if piece.count(text) == 1]
        found = _longest_increasing([place for place, _ in places])
        if not found:
            return 0.0
        credit = PIECES_WORTH * found / len(pieces)
        if HOLLOW & set(verdict.reasons):
            credit *= 0.25
        if MUDDLED & set(verdict.reasons):
            credit *= 0.5
        first = min(place for place, _ in places)
        last = max(place + piece.length for place, piece in places)
        outside = first + max(0, len(text) - last) if len(places) == len(pieces) else first
        return max(0.0, credit - OUTSIDE_WORTH * min(1.0, outside / OUTSIDE_CHARACTERS))

    return score


class _Piece:
    """A fixed part of the format."""

    def __init__(self, literal: str) -> None:
        self.literal = literal
        self.length = len(literal)

    def count(self, text: str) -> int:
        return text.count(self.literal)

    def start(self, text: str) -> int:
        return text.find(self.literal)


def _pieces(contract: "Contract") -> list[_Piece]:
    """The fixed parts of a contract's format, in order."""
    match contract.config.format:
        case XmlFormat() as xml:
            literals = [
                f"<{xml.reasoning_tag}>",
                f"</{xml.reasoning_tag}>",
                f"<{xml.answer_tag}>",
                f"</{xml.answer_tag}>",
            ]
        case R1Format() as think:
            literals = [f"<{think.think_tag}>", f"</{think.think_tag}>", "\\boxed{"]
        case JsonFormat() as keys:
            literals = [json.dumps(keys.reasoning_key), json.dumps(keys.answer_key)]
        case RegexFormat() as own:
            fixed = re.split(r"\{reasoning\}|\{answer\}", own.template)
            literals = [word for part in fixed for word in part.split() if len(word) > 1]
    # A literal that the format itself has twice cannot be told by counting.
    return [_Piece(literal) for literal in literals if literals.count(literal) == 1]


def _longest_increasing(places: list[int]) -> int:
    """Length of the longest increasing subsequence; the list has a handful of entries."""
    lengths: list[int] = []
    for index, place in enumerate(places):
        before = [lengths[earlier] for earlier in range(index) if places[earlier] < place]
        lengths.append(1 + max(before, default=0))
    return max(lengths, default=0)


Where = Literal["answer", "completion"]


class JsonValidityOptions(Section):
    """Settings of `json_validity`."""

    of: Where = "answer"
    """What has to be JSON: the answer block, or the whole completion."""


@library_entry(aspect=Aspect.FORMAT, weight=0.5, options=JsonValidityOptions)
def json_validity(contract: "Contract", options: JsonValidityOptions) -> Scorer:
    """1 when the answer is a JSON object or array, 0.5 when one stands in it with text around, else 0."""

    def score(text: str) -> float:
        subject = _subject(contract, text, options.of)
        if subject is None:
            return 0.0
        if _is_container(_json(subject)):
            return 1.0
        return 0.5 if _is_container(_json(_inner(subject))) else 0.0

    return score


class JsonSchemaOptions(Section):
    """Settings of `json_schema`."""

    json_schema: Annotated[dict[str, Any], Field(min_length=1)]
    """JSON Schema (draft 2020-12 unless it says otherwise) that the answer has to satisfy."""
    of: Where = "answer"
    """What has to satisfy it: the answer block, or the whole completion."""

    @field_validator("json_schema")
    @classmethod
    def _valid(cls, value: dict[str, Any]) -> dict[str, Any]:
        # The command line may lack the package; then the smoke test is the first to refuse a wrong schema.
        if importlib.util.find_spec("jsonschema"):
            import jsonschema

            try:
                jsonschema.validators.validator_for(value).check_schema(value)
            except jsonschema.SchemaError as error:
                raise ValueError(f"not a JSON Schema: {error.message}") from None
        return value


@library_entry(aspect=Aspect.FORMAT, weight=0.5, options=JsonSchemaOptions)
def json_schema(contract: "Contract", options: JsonSchemaOptions) -> Scorer:
    """1 when the answer satisfies the JSON Schema, 0.2 to 0.8 by the share of right properties, 0 when no JSON."""
    try:
        import jsonschema
    except ImportError as error:
        raise BadInputError("rewards: json_schema needs the package jsonschema: pip install jsonschema") from error
    schema = options.json_schema
    validator = jsonschema.validators.validator_for(schema)(schema)
    declared = {*schema.get("properties", {}), *schema.get("required", [])}

    def score(text: str) -> float:
        subject = _subject(contract, text, options.of)
        value = _json(subject) if subject is not None else _NOT_JSON
        if value is _NOT_JSON:
            return 0.0
        errors = list(validator.iter_errors(value))
        if not errors:
            return 1.0
        if not declared or not isinstance(value, dict):
            return 0.2
        wrong = {error.absolute_path[0] for error in errors if error.absolute_path}
        right = {name for name in declared if name in value and name not in wrong}
        return 0.2 + 0.6 * len(right) / len(declared)

    return score


class _NotJson:
    """Stands for text that is no JSON."""


_NOT_JSON = _NotJson()


def _subject(contract: "Contract", text: str, where: Where) -> str | None:
    return contract.read_answer(text) if where == "answer" else text


def _is_container(value: Any) -> bool:
    return isinstance(value, dict | list)


def _inner(text: str) -> str:
    """From the first bracket to the last that closes it in kind."""
    starts = [place for place in (text.find("{"), text.find("[")) if place >= 0]
    if not starts:
        return ""
    closing = "}" if text[min(starts)] == "{" else "]"
    return text[min(starts) : text.rfind(closing) + 1]


def _json(text: str) -> Any:
    """The value a text is as strict JSON (no NaN, no key twice), or `_NOT_JSON`."""
    try:
        return json.loads(text, parse_constant=_refuse, object_pairs_hook=_unique)
    except (ValueError, RecursionError):
        return _NOT_JSON


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if any(left == right for left, right in pairwise(sorted(key for key, _ in pairs))):
        raise ValueError("a key twice")
    return dict(pairs)

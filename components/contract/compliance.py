"""The verdict on a completion's form: strict, lenient, and a reason for every failure.

Made by the formats, read by rewards, evaluation and reports. The reasons' values are written to tables and MLflow;
do not rename them.
"""

from dataclasses import dataclass
from enum import StrEnum


class Reason(StrEnum):
    """Why a completion is not strictly in the format."""

    MISSING_TAG = "missing_tag"
    """A tag, key, box or match that the format needs is not there."""
    WRONG_ORDER = "wrong_order"
    """All parts are there, not in their order."""
    NESTED = "nested"
    """A tag stands inside another part."""
    EXTRA_TEXT = "extra_text"
    """Text before, between or behind the parts."""
    EMPTY = "empty"
    """A part holds nothing."""
    PLACEHOLDER = "placeholder"
    """A part holds the prompt's placeholder, or dots, in place of content."""
    MULTIPLE_ANSWERS = "multiple_answers"
    """More than one answer block."""
    MULTIPLE_REASONINGS = "multiple_reasonings"
    """More than one reasoning block."""
    STRAY_TAG = "stray_tag"
    """A closing tag that closes nothing."""
    TRUNCATED = "truncated"
    """A part is opened and never closed."""
    INVALID_JSON = "invalid_json"
    """The text is not one JSON object."""
    SCHEMA = "schema"
    """The JSON object breaks the schema, has other keys, or a value of the wrong type."""
    NO_MATCH = "no_match"
    """The text does not match the format's regular expression."""
    TOO_SLOW = "too_slow"
    """The format's regular expression took too long on this text and was stopped."""


@dataclass(frozen=True, slots=True)
class Compliance:
    """How far a completion keeps to the format.

    Args:
        strict: exactly the format and nothing else.
        lenient: an answer can be read from it.
        reasons: why it is not strict; empty exactly when it is.
    """

    strict: bool
    lenient: bool
    reasons: tuple[Reason, ...]


@dataclass(frozen=True, slots=True)
class Reading:
    """What a format found in a completion.

    Args:
        answer: the text of the one answer block, or None.
        reasons: why the completion is not strict; empty exactly when it is.
    """

    answer: str | None
    reasons: tuple[Reason, ...]

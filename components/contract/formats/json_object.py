"""The JSON format: one object with a key for the reasoning and a key for the answer.

Used by `components.contract.contract`. Strict is a text that is this one object and nothing else. To read an answer,
exactly one object with the answer's key is looked for anywhere in the text (a model likes to put it in a code fence).
Numbers keep the digits they were written with. Linear in the length of the text: objects are found by one scan for
braces and quotes, and at most 32 of those with one of the keys are parsed.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from components.contract.compliance import Reading, Reason
from components.errors import BadInputError

MAX_CANDIDATES = 32
MAX_MARKS = 100_000
_MARK = re.compile(r'[{}"\\]')


class _Literal(str):
    """A number of a JSON text, as written."""

    __slots__ = ()


@dataclass(frozen=True)
class JsonObject:
    """Reader and writer of `{"reasoning": "...", "answer": "..."}`.

    Args:
        reasoning_key: key of the reasoning.
        answer_key: key of the answer.
        extra_keys: whether other keys may stand in the object.
        schema: JSON Schema (draft 2020-12) of the object, or None.
    """

    reasoning_key: str = "reasoning"
    answer_key: str = "answer"
    extra_keys: bool = False
    schema: dict[str, Any] | None = None

    @cached_property
    def _validator(self) -> Any:
        """The schema's validator.

        Raises:
            BadInputError: when the schema is no JSON Schema or the library is missing.
        """
        if self.schema is None:
            return None
        try:
            from jsonschema import Draft202012Validator, SchemaError
        except ModuleNotFoundError:
            raise BadInputError(
                "contract.format.json_schema needs the package jsonschema; pip install jsonschema"
            ) from None
        try:
            Draft202012Validator.check_schema(self.schema)
        except SchemaError as error:
            raise BadInputError(f"contract.format.json_schema is no JSON Schema: {error.message}") from None
        return Draft202012Validator(self.schema)

    def prepare(self) -> None:
        """Refuse a schema that could not be used."""
        _ = self._validator

    @property
    def openings(self) -> tuple[str, ...]:
        """What a chat template could already have opened."""
        return ("{",)

    @property
    def skeleton(self) -> str:
        """The format with placeholders in its parts."""
        return self.write("[Your step-by-step thinking]", "[Final answer]")

    @property
    def prompt(self) -> str:
        """The system prompt used when the config gives none."""
        return (
            f"Respond with one JSON object in the following format and nothing else:\n{self.skeleton}\n\n{{examples}}"
        )

    def write(self, reasoning: str, answer: str) -> str:
        """An honest completion."""
        value: Any = answer
        properties = (self.schema or {}).get("properties", {})
        wanted = properties.get(self.answer_key, {}).get("type", "string") if isinstance(properties, dict) else "string"
        if wanted != "string":  # the schema asks for a number or a list: written so where the answer is one
            value = _plain(_parse(answer)[0])
            value = answer if value is None else value
        return json.dumps({self.reasoning_key: reasoning, self.answer_key: value}, ensure_ascii=False)

    def blocks(self, text: str) -> list[str]:
        """The values of both keys wherever an object stands in a text."""
        found = [value for value, _, _ in self._parsed(text, {})]
        return [str(value[key]) for value in found for key in (self.reasoning_key, self.answer_key) if key in value]

    def read(self, text: str, is_placeholder: Callable[[str], bool]) -> Reading:
        """Find the answer and what keeps the text from being strict.

        Args:
            text: the completion without end-of-turn tokens.
            is_placeholder: says whether a value stands for content without being any.

        Returns:
            The answer as text and the reasons.
        """
        reasons: dict[Reason, None] = {}
        text = text.strip()
        objects = self._parsed(text, reasons)
        if not objects:
            truncated = text.count("{") > text.count("}")
            reasons[Reason.TRUNCATED if truncated else Reason.INVALID_JSON] = None
            return Reading(None, tuple(reasons))
        if objects[0][1:] != (0, len(text)):
            reasons[Reason.EXTRA_TEXT] = None
        answers = [value for value, _, _ in objects if self.answer_key in value]
        if not answers:
            reasons[Reason.MISSING_TAG] = None
            return Reading(None, tuple(reasons))
        if len(answers) > 1:
            reasons[Reason.MULTIPLE_ANSWERS] = None
        answer = self._judge(answers[-1], reasons, is_placeholder)
        return Reading(None if Reason.MULTIPLE_ANSWERS in reasons else answer, tuple(reasons))

    def _parsed(self, text: str, reasons: dict[Reason, None]) -> list[tuple[dict[str, Any], int, int]]:
        """The objects with one of the keys, and where they stand; a key given twice goes into the reasons."""
        found: list[tuple[dict[str, Any], int, int]] = []
        names = tuple(
            json.dumps(key, ensure_ascii=ascii)
            for key in (self.reasoning_key, self.answer_key)
            for ascii in (True, False)
        )
        for start, end in _objects(text):
            if not any(text.find(name, start, end) >= 0 for name in names):
                continue
            value, duplicate = _parse(text[start:end])
            if duplicate:
                reasons[Reason.MULTIPLE_ANSWERS] = None
            if isinstance(value, dict) and (self.answer_key in value or self.reasoning_key in value):
                found.append((value, start, end))
            if len(found) >= MAX_CANDIDATES:
                break
        return found

    def _judge(
        self, found: dict[str, Any], reasons: dict[Reason, None], is_placeholder: Callable[[str], bool]
    ) -> str | None:
        """The answer of an object, and what is wrong with it."""
        reasoning = found.get(self.reasoning_key)
        if reasoning is None:
            reasons[Reason.MISSING_TAG] = None
        elif not isinstance(reasoning, str) or isinstance(reasoning, _Literal):
            reasons[Reason.SCHEMA] = None
        elif not reasoning.strip():
            reasons[Reason.EMPTY] = None
        elif is_placeholder(reasoning.strip()):
            reasons[Reason.PLACEHOLDER] = None
        keys = list(found)
        if not self.extra_keys and set(keys) - {self.reasoning_key, self.answer_key}:
            reasons[Reason.SCHEMA] = None
        if self.reasoning_key in found and keys.index(self.reasoning_key) > keys.index(self.answer_key):
            reasons[Reason.WRONG_ORDER] = None
        if self._validator is not None and not self._validator.is_valid(_plain(found)):
            reasons[Reason.SCHEMA] = None
        answer = _as_text(found[self.answer_key])
        if not answer:
            reasons[Reason.EMPTY] = None
            return None
        if is_placeholder(answer):
            reasons[Reason.PLACEHOLDER] = None
            return None
        return answer


def _as_text(value: Any) -> str:
    """A JSON value as the text of an answer."""
    if isinstance(value, str):
        return value.strip()
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(_plain(value), ensure_ascii=False)


def _plain(value: Any) -> Any:
    """A parsed value with its numbers as numbers; those too long to be one stay texts."""
    if isinstance(value, _Literal):
        try:
            return int(value)
        except ValueError:
            return float(value) if len(value) < 400 else str(value)
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return value


def _refuse(constant: str) -> None:
    """NaN and Infinity are no JSON."""
    raise ValueError(constant)


def _parse(text: str) -> tuple[Any, bool]:
    """The value of a JSON text, or None; and whether an object in it names one key twice."""
    duplicate = False

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal duplicate
        result = dict(pairs)
        duplicate = duplicate or len(result) < len(pairs)
        return result

    try:
        value = json.loads(
            text, parse_int=_Literal, parse_float=_Literal, parse_constant=_refuse, object_pairs_hook=unique
        )
    except (ValueError, RecursionError):
        return None, False
    return value, duplicate


def _objects(text: str) -> list[tuple[int, int]]:
    """Where the outermost {...} of a text start and end; an opening brace that is never closed is passed over.

    One pass. Quotes count inside braces only. A text with more than 100,000 braces and quotes has no object.
    """
    closed: list[tuple[int, int]] = []
    opened: list[int] = []
    quoted = False
    escaped = -1
    for count, mark in enumerate(_MARK.finditer(text)):
        if count > MAX_MARKS:
            return []
        place = mark.start()
        character = text[place]
        if place == escaped:
            continue
        if quoted:
            if character == "\\":
                escaped = place + 1
            elif character == '"':
                quoted = False
        elif character == '"':
            quoted = bool(opened)
        elif character == "{":
            opened.append(place)
        elif character == "}" and opened:
            start = opened.pop()
            while closed and closed[-1][0] > start:
                closed.pop()
            closed.append((start, place + 1))
    return closed

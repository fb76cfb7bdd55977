"""Plain text with a regular expression of the person's own.

Used by `components.contract.contract`. Patterns run in the `regex` library with a time limit, so that one that
backtracks without end makes a completion non-compliant (`too_slow`) and never stops a run.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from itertools import islice
from typing import Any

from components.contract.compliance import Reading, Reason
from components.errors import BadInputError

SECONDS = 0.2
"""Time limit for one match."""


@dataclass(frozen=True)
class CustomRegex:
    """Reader and writer of a format given as a regular expression.

    Args:
        pattern: what the whole text matches; has a group `answer`, and maybe `reasoning`.
        answer_pattern: finds the answer in other texts, or None.
        template: a text that matches, with `{reasoning}` and `{answer}` in it.
    """

    pattern: str
    answer_pattern: str | None
    template: str

    def prepare(self) -> None:
        """Refuse patterns that do not compile, have no group `answer`, or do not match the template."""
        for field, compiled in (("pattern", self._strict), ("answer_pattern", self._loose)):
            if compiled is not None and "answer" not in compiled.groupindex:
                raise BadInputError(f"contract.format.{field} has no group named answer; write (?P<answer>...) in it")
        written = self.write("because of this", "12")
        if not self._strict.fullmatch(written.strip(), timeout=SECONDS):
            raise BadInputError(
                f"contract.format.template written out is {written!r}, which contract.format.pattern "
                f"{self.pattern!r} does not match; change one of them"
            )

    @cached_property
    def _strict(self) -> Any:
        return self._compile("pattern", self.pattern)

    @cached_property
    def _loose(self) -> Any:
        return None if self.answer_pattern is None else self._compile("answer_pattern", self.answer_pattern)

    @staticmethod
    def _compile(field: str, pattern: str) -> Any:
        try:
            regex = import_module("regex")
        except ModuleNotFoundError:
            raise BadInputError("contract.format regex needs the package regex; pip install regex") from None
        try:
            return regex.compile(pattern, regex.DOTALL)
        except regex.error as error:
            raise BadInputError(f"contract.format.{field} {pattern!r} is no regular expression: {error}") from None

    @property
    def openings(self) -> tuple[str, ...]:
        """What a chat template could already have opened: the template's text before its first gap."""
        start = self.template.split("{", 1)[0].strip()
        return (start,) if start else ()

    @property
    def skeleton(self) -> str:
        """The format with placeholders in its parts."""
        return self.write("[Your step-by-step thinking]", "[Final answer]")

    @property
    def prompt(self) -> str:
        """The system prompt used when the config gives none."""
        return f"Respond in the following format:\n{self.skeleton}\n\n{{examples}}"

    def write(self, reasoning: str, answer: str) -> str:
        """An honest completion."""
        return self.template.replace("{answer}", "\0").replace("{reasoning}", reasoning).replace("\0", answer)

    def blocks(self, text: str) -> list[str]:
        """What the groups hold where the pattern is found in a text."""
        try:
            match = self._strict.search(text, timeout=SECONDS)
        except TimeoutError:
            return []
        return [value.strip() for value in match.groupdict().values() if value] if match else []

    def read(self, text: str, is_placeholder: Callable[[str], bool]) -> Reading:
        """Find the answer and what keeps the text from being strict.

        Args:
            text: the completion without end-of-turn tokens.
            is_placeholder: says whether a group stands for content without being any.

        Returns:
            The group `answer` of the one match, and the reasons.
        """
        reasons: dict[Reason, None] = {}
        text = text.strip()
        try:
            match = self._strict.fullmatch(text, timeout=SECONDS)
            if match is None:
                reasons[Reason.NO_MATCH] = None
            if self._loose is not None:
                found = list(islice(self._loose.finditer(text, timeout=SECONDS), 2))
                if len(found) > 1:
                    reasons[Reason.MULTIPLE_ANSWERS] = None
                match = None if len(found) > 1 else match or (found[0] if found else None)
        except TimeoutError:
            reasons[Reason.TOO_SLOW] = None
            match = None
        if match is None:
            return Reading(None, tuple(reasons))
        groups = match.groupdict()
        answer = (groups["answer"] or "").strip()
        reasoning = groups.get("reasoning")
        if "reasoning" in groups and not (reasoning or "").strip():
            reasons[Reason.EMPTY] = None
        elif reasoning is not None and is_placeholder(reasoning.strip()):
            reasons[Reason.PLACEHOLDER] = None
        if not answer:
            reasons[Reason.EMPTY] = None
        elif is_placeholder(answer):
            reasons[Reason.PLACEHOLDER] = None
        usable = bool(answer) and not is_placeholder(answer)
        return Reading(answer if usable else None, tuple(reasons))

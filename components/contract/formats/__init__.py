"""The response formats, one module each, behind one interface.

Used by `components.contract.contract` only. A format reads and writes text; it knows nothing of numbers or gold answers.
"""

from collections.abc import Callable, Iterable
from typing import Protocol

from components.contract.compliance import Reading
from components.contract.config import JsonFormat, RegexFormat, ResponseFormat, ThinkFormat, XmlFormat


class Format(Protocol):
    """What the contract needs of a response format."""

    @property
    def openings(self) -> tuple[str, ...]:
        """Beginnings of the format that a chat template could already have written."""

    @property
    def skeleton(self) -> str:
        """The format with placeholders in its parts, as a system prompt shows it."""

    @property
    def prompt(self) -> str:
        """The system prompt used when the config gives none."""

    def write(self, reasoning: str, answer: str) -> str:
        """An honest completion."""

    def read(self, text: str, is_placeholder: Callable[[str], bool]) -> Reading:
        """The answer of a completion, and why it is not strict."""

    def blocks(self, text: str) -> Iterable[str]:
        """What stands in the format's parts wherever they occur in a text, such as a system prompt."""


def build_format(config: ResponseFormat) -> Format:
    """The reader and writer for a configured format."""
    match config:
        case XmlFormat():
            from components.contract.formats.xml_tags import XmlTags

            return XmlTags(config.reasoning_tag, config.answer_tag)
        case JsonFormat() | ThinkFormat() | RegexFormat():
            raise NotImplementedError(config.type)

"""The response formats, one module each, behind one interface.

Used by `components.contract.contract` only. A format reads and writes text and knows nothing of numbers or golds.
"""

from collections.abc import Callable, Iterable
from typing import Protocol

from components.contract.compliance import Reading
from components.contract.config import JsonFormat, R1Format, RegexFormat, ResponseFormat, XmlFormat
from components.contract.formats.custom_regex import CustomRegex
from components.contract.formats.json_object import JsonObject
from components.contract.formats.think_boxed import ThinkBoxed
from components.contract.formats.xml_tags import XmlTags


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
    """The reader and writer for a configured format.

    Args:
        config: the contract's `format`.

    Raises:
        BadInputError: when a schema or a regular expression in it cannot be used.
    """
    match config:
        case XmlFormat():
            return XmlTags(config.reasoning_tag, config.answer_tag)
        case R1Format():
            return ThinkBoxed(config.think_tag)
        case JsonFormat():
            found = JsonObject(config.reasoning_key, config.answer_key, config.extra_keys, config.json_schema)
            found.prepare()
            return found
        case RegexFormat():
            custom = CustomRegex(config.pattern, config.answer_pattern, config.template)
            custom.prepare()
            return custom

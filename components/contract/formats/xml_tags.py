"""The XML format: one reasoning block, one answer block, in this order and nothing else.

Used by `components.contract.contract`. Tags are matched literally: upper case, attributes, blanks inside the brackets
and escaped tags are text. Linear in the length of the text: tags are found by one scan for "<".

Reading: the one answer block outside the reasoning counts. A closing tag belongs to the nearest open tag of its name, a
reasoning that never ends hides nothing, and an answer that is opened and not closed leaves no answer to read.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from components.contract.compliance import Reading, Reason

MAX_TAGS = 10_000
"""A text with more of the format's tags is no response, whatever they enclose."""


@dataclass(frozen=True)
class XmlTags:
    """Reader and writer of `<reasoning>...</reasoning><answer>...</answer>`.

    Args:
        reasoning_tag: name of the reasoning's tag.
        answer_tag: name of the answer's tag.
    """

    reasoning_tag: str = "reasoning"
    answer_tag: str = "answer"

    def __post_init__(self) -> None:
        names = f"{re.escape(self.reasoning_tag)}|{re.escape(self.answer_tag)}"
        object.__setattr__(self, "_tags", re.compile(f"<(/?)({names})>"))
        literals = tuple(f"<{s}{name}>" for name in (self.reasoning_tag, self.answer_tag) for s in ("", "/"))
        object.__setattr__(self, "_literals", literals)

    _tags = re.compile("")
    _literals: tuple[str, ...] = field(default=(), init=False, repr=False, compare=False)

    @property
    def openings(self) -> tuple[str, ...]:
        """What a chat template could already have opened."""
        return (f"<{self.reasoning_tag}>",)

    @property
    def skeleton(self) -> str:
        """The format with placeholders in its parts."""
        return self.write("[Your step-by-step thinking]", "[Final answer]")

    @property
    def prompt(self) -> str:
        """The system prompt used when the config gives none."""
        return f"Respond in the following format:\n{self.skeleton}\n\n{{examples}}"

    def blocks(self, text: str) -> list[str]:
        """What stands between each opening tag and the next tag in a text."""
        tags = list(self._tags.finditer(text))
        pairs = pairwise(tags)
        return [text[m.end() : n.start()].strip() for m, n in pairs if not m[1] and n[1] and m[2] == n[2]]

    def write(self, reasoning: str, answer: str) -> str:
        """An honest completion."""
        r, a = self.reasoning_tag, self.answer_tag
        return f"<{r}>\n{reasoning}\n</{r}>\n<{a}>\n{answer}\n</{a}>"

    def read(self, text: str, is_placeholder: Callable[[str], bool]) -> Reading:
        """Find the answer and what keeps the text from being strict.

        Args:
            text: the completion without end-of-turn tokens.
            is_placeholder: says whether a block's text stands for content without being any.

        Returns:
            The answer's text, stripped, and the reasons.
        """
        plain = self._read_plain(text, is_placeholder)
        return plain if plain is not None else self._read_any(text, is_placeholder)

    def _read_plain(self, text: str, is_placeholder: Callable[[str], bool]) -> Reading | None:
        """The common case without a token list: None when the text is not strictly in the format."""
        text = text.strip()
        start, close, opening, end = self._literals
        if not text.startswith(start) or not text.endswith(end):
            return None
        behind = text.find(close)
        before = text.find(opening, behind)
        if behind < 0 or before < 0:
            return None
        count = text.count
        if not count(start) == count(close) == count(opening) == count(end) == 1:
            return None
        body = text[len(start) : behind].strip()
        between = text[behind + len(close) : before]
        answer = text[before + len(opening) : -len(end)].strip()
        if not body or not answer or (between and not between.isspace()):
            return None
        if is_placeholder(body) or is_placeholder(answer):
            return None
        return Reading(answer, ())

    def _read_any(self, text: str, is_placeholder: Callable[[str], bool]) -> Reading:
        """Any text: the answer if exactly one block outside the reasoning holds one, and all that is wrong."""
        reasons: dict[Reason, None] = {}
        if sum(text.count(tag) for tag in self._literals) > MAX_TAGS:
            many = text.count(self._literals[2]) > 1
            return Reading(None, (Reason.MULTIPLE_ANSWERS if many else Reason.MULTIPLE_REASONINGS,))
        tags = [_Tag(m.start(), m.end(), bool(m[1]), m[2] == self.answer_tag) for m in self._tags.finditer(text)]
        blocks, unclosed, stray = _pair_reasonings(tags)
        if unclosed:
            reasons[Reason.TRUNCATED] = None

        inside, depth = [False] * len(tags), 0
        starts, ends = {start for start, _ in blocks}, {end for _, end in blocks}
        for place in range(len(tags)):
            depth -= place in ends
            inside[place] = depth > 0
            depth += place in starts
        if any(inside):
            reasons[Reason.NESTED] = None

        # The answer.
        opened = [i for i, tag in enumerate(tags) if tag.is_answer and not tag.closing and not inside[i]]
        closed = [i for i, tag in enumerate(tags) if tag.is_answer and tag.closing and not inside[i]]
        answer: str | None = None
        if not opened:
            reasons[Reason.MISSING_TAG] = None
        elif len(opened) > 1:
            reasons[Reason.MULTIPLE_ANSWERS] = None
        behind = [i for i in closed if opened and i > opened[0]]
        if len(opened) == 1:
            if not behind:
                reasons[Reason.TRUNCATED] = None
            elif behind[0] != opened[0] + 1:
                reasons[Reason.NESTED] = None
            else:
                answer = text[tags[opened[0]].end : tags[behind[0]].start].strip()
        if stray or len(closed) > len(opened) or len(closed) > len(behind):
            reasons[Reason.STRAY_TAG] = None

        # The reasoning.
        outer = [(start, end) for start, end in blocks if not inside[start]]
        if not outer:
            reasons[Reason.MISSING_TAG] = None
        elif len(outer) > 1:
            reasons[Reason.MULTIPLE_REASONINGS] = None
        else:
            body = text[tags[outer[0][0]].end : tags[outer[0][1]].start].strip()
            if not body:
                reasons[Reason.EMPTY] = None
            elif is_placeholder(body):
                reasons[Reason.PLACEHOLDER] = None
        if opened and any(not tag.is_answer for tag in tags[opened[0] :]):
            reasons[Reason.WRONG_ORDER] = None

        if answer is not None and (not answer or is_placeholder(answer)):
            reasons[Reason.PLACEHOLDER if answer else Reason.EMPTY] = None
            answer = None

        # Text that stands before everything, or behind a closing tag and in no reasoning.
        place, closing = 0, True
        depth = 0
        for index, tag in enumerate([*tags, _Tag(len(text), len(text), False, False)]):
            if closing and not depth and tag.start > place and not text[place : tag.start].isspace():
                reasons[Reason.EXTRA_TEXT] = None
                break
            place, closing = tag.end, tag.closing
            depth += (index in starts) - (index in ends)
        return Reading(answer, tuple(reasons))


class _Tag(NamedTuple):
    """A tag of the format in a text: where it starts and ends, and which it is."""

    start: int
    end: int
    closing: bool
    is_answer: bool


def _pair_reasonings(tags: list[_Tag]) -> tuple[list[tuple[int, int]], bool, bool]:
    """Pair every closing reasoning tag with the nearest open one.

    Args:
        tags: all tags in their order.

    Returns:
        Places of opening and closing tags; whether a reasoning never ends; whether a closing tag closes nothing.
    """
    blocks: list[tuple[int, int]] = []
    opened: list[int] = []
    stray = False
    for place, tag in enumerate(tags):
        if tag.is_answer:
            continue
        if not tag.closing:
            opened.append(place)
        elif opened:
            blocks.append((opened.pop(), place))
        else:
            stray = True
    return blocks, bool(opened), stray

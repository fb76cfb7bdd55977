"""The XML format: one reasoning block, one answer block, in this order and nothing else.

Used by `components.contract.contract`. Tags are matched literally: upper case, attributes, blanks inside the brackets
and escaped tags are text. Linear in the length of the text: tags are found by one scan for "<".

Reading: the one answer block outside the reasoning counts. A closing tag belongs to the nearest open tag of its name, a
reasoning that never ends hides nothing, and an answer that is opened and not closed leaves no answer to read.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from components.contract.compliance import Reading, Reason


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

    _tags = re.compile("")

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
        r, a = self.reasoning_tag, self.answer_tag
        text = text.strip()
        start, end = f"<{r}>", f"</{a}>"
        if not text.startswith(start) or not text.endswith(end):
            return None
        close = text.find(f"</{r}>")
        opening = text.find(f"<{a}>", close)
        if close < 0 or opening < 0 or len(self._tags.findall(text)) != 4:
            return None
        body = text[len(start) : close].strip()
        between = text[close + len(r) + 3 : opening]
        answer = text[opening + len(a) + 2 : -len(end)].strip()
        if not body or not answer or (between and not between.isspace()):
            return None
        if is_placeholder(body) or is_placeholder(answer):
            return None
        return Reading(answer, ())

    def _read_any(self, text: str, is_placeholder: Callable[[str], bool]) -> Reading:
        reasons: dict[Reason, None] = {}
        tags = [(m.start(), m.end(), bool(m[1]), m[2] == self.answer_tag) for m in self._tags.finditer(text)]

        # Pair every closing tag with the nearest open tag of its name.
        reasonings: list[tuple[int, int]] = []
        open_reasonings: list[int] = []
        stray = False
        for index, (_, _, closing, is_answer) in enumerate(tags):
            if is_answer:
                continue
            if not closing:
                open_reasonings.append(index)
            elif open_reasonings:
                reasonings.append((open_reasonings.pop(), index))
            else:
                stray = True
        if open_reasonings:
            reasons[Reason.TRUNCATED] = None
        inside = [False] * len(tags)
        depth = 0
        opens = {pair[0] for pair in reasonings}
        closes = {pair[1] for pair in reasonings}
        for index in range(len(tags)):
            if index in closes:
                depth -= 1
            inside[index] = depth > 0
            if index in opens:
                depth += 1
        if any(inside):
            reasons[Reason.NESTED] = None
        outer = [pair for pair in reasonings if not inside[pair[0]]]

        # Answer blocks outside the reasoning.
        outside = [i for i in range(len(tags)) if tags[i][3] and not inside[i]]
        opened = [i for i in outside if not tags[i][2]]
        closed = [i for i in outside if tags[i][2]]
        answer: str | None = None
        first_answer = -1
        if not opened:
            reasons[Reason.MISSING_TAG] = None
            stray = stray or bool(closed)
        elif len(opened) > 1:
            reasons[Reason.MULTIPLE_ANSWERS] = None
        else:
            first_answer = opened[0]
            after = [i for i in closed if i > first_answer]
            stray = stray or len(closed) > len(after[:1])
            if not after:
                reasons[Reason.TRUNCATED] = None
            elif after[0] != first_answer + 1:
                reasons[Reason.NESTED] = None
            else:
                answer = text[tags[first_answer][1] : tags[after[0]][0]].strip()
        if stray:
            reasons[Reason.STRAY_TAG] = None

        # The reasoning.
        if not outer:
            reasons[Reason.MISSING_TAG] = None
        elif len(outer) > 1:
            reasons[Reason.MULTIPLE_REASONINGS] = None
        else:
            body = text[tags[outer[0][0]][1] : tags[outer[0][1]][0]].strip()
            if not body:
                reasons[Reason.EMPTY] = None
            elif is_placeholder(body):
                reasons[Reason.PLACEHOLDER] = None
        positions = [i for i in range(len(tags)) if not tags[i][3]]
        if first_answer >= 0 and positions and positions[-1] > first_answer:
            reasons[Reason.WRONG_ORDER] = None

        if answer is not None:
            if not answer:
                reasons[Reason.EMPTY] = None
                answer = None
            elif is_placeholder(answer):
                reasons[Reason.PLACEHOLDER] = None
                answer = None

        # Text that belongs to no block.
        covered = [(tags[i][0], tags[j][1]) for i, j in outer]
        covered += [(tags[i][0], tags[i + 1][1]) for i in opened if i + 1 < len(tags) and i + 1 in closed]
        covered += [(tags[i][0], tags[i][1]) for i in range(len(tags)) if not inside[i]]
        place = 0
        tail_is_open = bool(open_reasonings) or (bool(opened) and not any(i > opened[-1] for i in closed))
        for begin, end in sorted(covered):
            if begin > place and not tail_is_open and not text[place:begin].isspace():
                reasons[Reason.EXTRA_TEXT] = None
                break
            place = max(place, end)
        else:
            rest = text[place:]
            if rest and not rest.isspace() and not tail_is_open:
                reasons[Reason.EXTRA_TEXT] = None
        return Reading(answer, tuple(reasons))

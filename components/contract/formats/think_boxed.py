r"""The R1 format: `<think>` reasoning `</think>`, then text with the answer in one `\boxed{}`.

Used by `components.contract.contract`. Where the chat template writes `<think>` itself, set `contract.prefill` and the
completion is read with it in front. Boxes inside the thinking are drafts and never the answer; thinking that does not
end leaves no answer. Linear in the length of the text.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from components.contract.boxes import boxed
from components.contract.compliance import Reading, Reason


@dataclass(frozen=True)
class ThinkBoxed:
    r"""Reader and writer of `<think>...</think> ... \boxed{...}`.

    Args:
        tag: name of the reasoning's tag.
    """

    tag: str = "think"

    @property
    def openings(self) -> tuple[str, ...]:
        """What a chat template could already have opened."""
        return (f"<{self.tag}>",)

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
        return f"<{self.tag}>\n{reasoning}\n</{self.tag}>\n\\boxed{{{answer}}}"

    def blocks(self, text: str) -> list[str]:
        """The thinking and the boxes in a text."""
        thoughts = re.findall(rf"<{re.escape(self.tag)}>([^<]*)</{re.escape(self.tag)}>", text)
        return [*(thought.strip() for thought in thoughts), *(content.strip() for content, _, _ in boxed(text))]

    def read(self, text: str, is_placeholder: Callable[[str], bool]) -> Reading:
        """Find the answer and what keeps the text from being strict.

        Args:
            text: the completion without end-of-turn tokens.
            is_placeholder: says whether a part stands for content without being any.

        Returns:
            The content of the one box behind the thinking, and the reasons.
        """
        reasons: dict[Reason, None] = {}
        opening, closing = f"<{self.tag}>", f"</{self.tag}>"
        text = text.strip()
        opens, closes = text.count(opening), text.count(closing)
        end = text.rfind(closing)
        if not opens or not closes:
            reasons[Reason.MISSING_TAG] = None
        if opens > closes:
            reasons[Reason.TRUNCATED] = None
        if opens > 1 or closes > 1:
            reasons[Reason.MULTIPLE_REASONINGS] = None
        if opens and text.rfind(opening) > end:
            # Thinking begins and does not end: all behind it is thought.
            if closes:
                reasons[Reason.WRONG_ORDER] = None
            reasons[Reason.TRUNCATED] = None
            return Reading(None, tuple(reasons))
        start = text.find(opening)
        if start > 0:
            reasons[Reason.EXTRA_TEXT] = None
        if opens and closes:
            thought = text[start + len(opening) : end].strip()
            if not thought:
                reasons[Reason.EMPTY] = None
            elif is_placeholder(thought):
                reasons[Reason.PLACEHOLDER] = None
        rest = text[end + len(closing) :] if end >= 0 else text
        boxes = boxed(rest)
        answer: str | None = None
        if not boxes:
            reasons[Reason.TRUNCATED if "\\boxed{" in rest else Reason.MISSING_TAG] = None
        elif len(boxes) > 1 or "\\boxed{" in boxes[0][0]:
            reasons[Reason.MULTIPLE_ANSWERS] = None
        else:
            answer = boxes[0][0].strip()
            if not answer:
                reasons[Reason.EMPTY] = None
                answer = None
            elif is_placeholder(answer):
                reasons[Reason.PLACEHOLDER] = None
                answer = None
        return Reading(answer, tuple(reasons))

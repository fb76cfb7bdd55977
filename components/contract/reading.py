r"""Reads an answer from any text: the last `\boxed{}`, else what follows "answer is", else the last number.

Called by the contract for `read_answer(text, lenient=True)`: for measuring how often a model is right however it says
so, never for reward. Linear in the length of the text.
"""

import re
from collections import deque
from collections.abc import Callable

from components.contract.boxes import boxed
from components.contract.words import SCALES

_SAID = re.compile(r"answer\s{1,8}is\b\s{0,8}:?", re.IGNORECASE)
_SENTENCE_END = re.compile(r"\n|[.;]\s|[.;]?</?[A-Za-z]|[.;]?$")
_WINDOW = 1000
_DIGIT = re.compile(r"\d")
_NUMBER = re.compile(
    r"(?:(?<![\w.,)])[-−–+])?[$€£]?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?(?:/\d+)?%?"
    rf"(?:[ ](?:{'|'.join(sorted(SCALES))})\b)?"
)


def read_anywhere(text: str, is_placeholder: Callable[[str], bool]) -> str | None:
    """The answer a text gives in some other way than the format's.

    Args:
        text: a completion.
        is_placeholder: says whether a text stands for an answer without being one.

    Returns:
        The answer as written, or None.
    """
    for content, _, _ in reversed(boxed(text)):
        if content.strip() and not is_placeholder(content.strip()):
            return content.strip()
    said = _last(_SAID, text)
    if said:
        rest = text[said.end() : said.end() + _WINDOW].lstrip()
        end = _SENTENCE_END.search(rest)
        sentence = (rest[: end.start()] if end else rest).strip()
        if sentence and not is_placeholder(sentence):
            return sentence
    number = _last(_NUMBER, text) if _DIGIT.search(text) else None
    return number[0] if number else None


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    """The last match in a text, looked for from the end."""
    size = 4 * _WINDOW
    while True:
        start = max(0, len(text) - size)
        found = deque(pattern.finditer(text, start), maxlen=1)
        # A match near the start of the window may have been cut by it.
        if start == 0 or (found and found[0].start() > start + _WINDOW):
            return found[0] if found else None
        size *= 16

"""Tells a block's content from something that only stands in its place: "...", "[Final answer]", "your answer here".

Used by the formats through the contract. The contract adds the placeholders of its own system prompt. It errs towards
content: a bracketed text needs a word such as "answer" or "your", and nothing with a digit is a placeholder.
"""

import re
import unicodedata
from collections.abc import Iterable

MAX_LENGTH = 200
"""A longer text is content."""

_FILLER = re.compile(r"(?:[.…]+|[_\-–—*·•\s]{2,}|[\s.…_]+|\?+)")
_BRACKETED = re.compile(r"[\[<({«](?!/)(.*)[\]>)}»]", re.DOTALL)
_EMPHASIS = "*_`\"'“”‘’ \t\r\n"
_CUES = frozenset(
    """your answer answers final result number value insert here solution thinking thought thoughts reasoning steps
    explanation explain step response output placeholder fill enter write put goes working text content""".split()  # noqa: SIM905
)
_BARE = re.compile(
    r"(?:(?:insert|put|write|enter|place|give|add|fill in|provide|the|your|my|a|an|own)\s+)*"
    r"(?:(?:final|numeric|numerical|correct|actual|short|single|step[- ]by[- ]step|detailed)\s+)*"
    r"(?P<noun>answer|answers|result|number|value|response|solution|reasoning|thinking|thoughts|explanation)"
    r"(?P<tail>\s+(?:to\s+(?:the|this)\s+(?:question|problem)|goes\s+here|is\s+here|here|only|goes\s+in\s+here|in\s+here))?"
)


_MARKS = frozenset("-–—|*#!_.…·•'\"`,;:")
_BLANK_SYMBOLS = frozenset("\u115f\u1160\u2800\u3164\uffa0")  # letters and symbols that are drawn as nothing


def has_content(text: str) -> bool:
    """Whether a text shows more than blanks, invisible characters and lone marks.

    Args:
        text: a block's content.
    """
    return any(
        character not in _MARKS
        and character not in _BLANK_SYMBOLS
        and unicodedata.category(character)[0] not in "ZCM"  # separators, control and format, combining marks
        for character in text
    )


def comparable(text: str) -> str:
    """The text as placeholders are compared: one case, single spaces, no emphasis or final stop around it."""
    return " ".join(text.casefold().split()).strip(_EMPHASIS).rstrip(".:").strip(_EMPHASIS)


def is_generic_placeholder(text: str) -> bool:
    """Whether a text is a placeholder in any contract.

    Args:
        text: a block's content; empty counts as a placeholder.
    """
    if not has_content(text):
        return True
    if len(text) > MAX_LENGTH:
        return False
    if _FILLER.fullmatch(text.strip()):
        return True
    plain = comparable(text)
    if any(character.isdigit() for character in plain):
        return False
    bracketed = _BRACKETED.fullmatch(plain)
    if bracketed:
        inner = bracketed[1].strip()
        if not inner or _FILLER.fullmatch(inner):
            return True
        return any(word in _CUES for word in re.findall(r"[a-z]+", inner))
    bare = _BARE.fullmatch(plain.strip("$%#@").replace("_", " "))
    if not bare:
        return False
    return bool(bare["tail"]) or bare["noun"].startswith("answer") or "your" in plain.split() or "insert" in plain


def is_bracketed(text: str) -> bool:
    """Whether a text is one bracketed phrase without digits, as templates write their gaps."""
    plain = comparable(text)
    return bool(_BRACKETED.fullmatch(plain)) and not any(character.isdigit() for character in plain)


def own_placeholders(blocks: Iterable[str]) -> frozenset[str]:
    """The placeholders among the blocks that a system prompt shows.

    Args:
        blocks: what stands in the format's parts in the system prompt.

    Returns:
        Comparable texts; blocks that look like a worked example are left out.
    """
    return frozenset(comparable(block) for block in blocks if is_bracketed(block) or is_generic_placeholder(block))

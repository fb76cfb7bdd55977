r"""Finds `\boxed{...}` in a text, with braces inside it. Used by the R1 format and by the lenient reading. Linear."""

import re

_MARK = re.compile(r"\\(?:boxed|fbox)\s{0,4}\{|\\.|[{}]", re.DOTALL)
MAX_MARKS = 200_000


def boxed(text: str) -> list[tuple[str, int, int]]:
    r"""The outermost complete boxes of a text.

    Args:
        text: any text; one with more than 200,000 braces and commands has no boxes.

    Returns:
        For each its content, where the command starts, and where it ends. A box that is opened and not closed is passed
        over.
    """
    if "\\boxed" not in text and "\\fbox" not in text:
        return []
    found: list[tuple[str, int, int]] = []
    opened: list[tuple[int, int]] = []  # start of the command or -1 for a plain brace, start of the content
    for count, mark in enumerate(_MARK.finditer(text)):
        if count > MAX_MARKS:
            return []
        piece = mark[0]
        if piece == "{":
            opened.append((-1, mark.end()))
        elif piece == "}":
            if opened:
                start, content = opened.pop()
                if start >= 0:
                    while found and found[-1][1] > start:
                        found.pop()
                    found.append((text[content : mark.start()], start, mark.end()))
        elif piece[-1] == "{" and len(piece) > 2:
            opened.append((mark.start(), mark.end()))
    return found

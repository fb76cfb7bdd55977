"""Compares answers that are words, letters of a multiple choice, or several values.

Called by `components.contract.answers`. Normalising is idempotent and linear; texts of more than 10,000 characters
only lose case and white space.
"""

import re
import unicodedata

from components.contract.characters import plain_characters, without_end_tokens

MAX_CHARACTERS = 10_000

_LABEL = re.compile(
    r"(?:(?:so|thus|therefore|hence)[, ]+)?(?:(?:the|my)\s+)?(?:(?:final|correct|right)\s+)?"
    r"(?:answer|option|choice)\s*(?:is\b\s*:?|:|=)\s*(?:option\s+|choice\s+)?",
    re.IGNORECASE,
)
_WRAPPED = re.compile(r"\\(?:boxed|fbox|text|textbf|textit|textrm|mathrm|mathbf|mbox)\s*\{(.*)\}", re.DOTALL)
_PAIRS = (
    *((mark, mark) for mark in ("**", "__", "*", "_", "`", '"', "'", "$")),
    *(("\\(", "\\)"), ("\\[", "\\]")),
)


def normalise_text(text: str, *, case_sensitive: bool = False) -> str:
    """A text as answers are compared: one case, single spaces, no emphasis, quotes, label or end punctuation.

    Args:
        text: an answer.
        case_sensitive: keep upper and lower case.

    Returns:
        The normalised text; the same again when normalised again.
    """
    text = " ".join(unicodedata.normalize("NFC", plain_characters(without_end_tokens(text))).split())
    if not case_sensitive:
        text = " ".join(unicodedata.normalize("NFC", text.casefold()).split())
    if len(text) > MAX_CHARACTERS:
        return text
    previous = None
    while previous != text:
        previous = text
        text = without_end_tokens(unwrapped(text))
        text = _LABEL.sub("", text, count=1) if _LABEL.match(text) else text
        text = text.strip().rstrip(".,;:! ") or text
    return text


def unwrapped(text: str) -> str:
    """The text without emphasis, quotes and LaTeX wrappers that stand around the whole of it."""
    previous = None
    while previous != text:
        previous = text
        text = text.strip()
        wrapped = _WRAPPED.fullmatch(text)
        if wrapped and _balanced(wrapped[1]):
            text = wrapped[1]
        for start, end in _PAIRS:
            inner = text[len(start) : -len(end)]
            if len(text) > len(start) + len(end) and text.startswith(start) and text.endswith(end):
                if start in inner or end in inner:
                    continue
                text = inner
    return text


def _balanced(text: str) -> bool:
    depth = 0
    for character in text:
        depth += (character == "{") - (character == "}")
        if depth < 0:
            return False
    return depth == 0


def read_choice(text: str, choices: str) -> str | None:
    """The one letter of a multiple choice that an answer picks.

    Args:
        text: an answer: "B", "(b)", "B) Paris", "Option B", "The answer is B."
        choices: the letters offered, upper case.

    Returns:
        The letter in upper case; None for no letter or for several.
    """
    if len(text) > MAX_CHARACTERS:
        return None
    plain = " ".join(plain_characters(without_end_tokens(text)).replace("**", "").split())
    previous = None
    while previous != plain:
        previous = plain
        plain = unwrapped(plain).rstrip(".,;! ")
        label = _LABEL.match(plain) or re.match(r"(?:option|choice)\s+", plain, re.IGNORECASE)
        plain = plain[label.end() :] if label else plain
    match = re.fullmatch(r"[(\[]?([A-Za-z])[)\]]?[.:]?", plain)
    if match is None:
        match = re.fullmatch(r"(?:[(\[]([A-Z])[)\]]|([A-Z])[).:])\s*(.+)", plain, re.DOTALL)
        if match is None or re.search(
            rf"(?:^|[\s(\[])[{choices}][)\].:](?:\s|$)|\b(?:or|and|not)\s+[(\[]?[{choices}]\b", match[3]
        ):
            return None
    letter = str(match[1] or match[2]).upper()
    return letter if letter in choices else None


def split_items(text: str) -> tuple[str, ...] | None:
    r"""The values of a set or list as written.

    Args:
        text: "{1, 2}", "\{1, 2\}", "[a, b]", "(3, 4)", "1, 2 and 3", "x = 1, 2"; a comma always separates, so a number
            in a list is written without thousands commas (or with "{,}").

    Returns:
        The values; an empty tuple for the empty set, None where a value is missing or brackets do not pair.
    """
    if len(text) > MAX_CHARACTERS:
        return None
    text = " ".join(plain_characters(without_end_tokens(text)).split())
    text = unwrapped(text).rstrip(".;, ")
    label = _LABEL.match(text)
    text = unwrapped(text[label.end() :] if label else text)
    text = re.sub(r"^[A-Za-z](?:_\w)?\s*(?:=|\\in|∈)\s*", "", text)
    text = text.replace("\\{", "{").replace("\\}", "}").replace("\\left", "").replace("\\right", "").strip()
    text = text.replace("{,}", "")
    if text in ("\\emptyset", "\\varnothing", "∅", "{}", "[]", "()"):
        return ()
    if len(text) > 1 and text[0] + text[-1] in ("{}", "[]", "()") and _encloses(text):
        text = text[1:-1]
    items: list[str] = []
    depth = start = 0
    separators = {m.start(): m.end() for m in re.finditer(r"\s+(?:and|\\text\{\s*and\s*\})\s+", text)}
    place = 0
    while place < len(text):
        character = text[place]
        depth += (character in "{[(") - (character in ")]}")
        if depth < 0:
            return None
        if depth == 0 and (character in ",;\n" or place in separators):
            items.append(text[start:place].strip())
            start = separators.get(place, place + 1)
            place = start
            if character in ",;" and (following := re.match(r"\s*and\s+", text[start:])):
                start = place = start + following.end()
            continue
        place += 1
    items.append(text[start:].strip())
    return tuple(items) if depth == 0 and all(items) else None


def _encloses(text: str) -> bool:
    """Whether the first and the last character are one pair of brackets."""
    depth = 0
    for place, character in enumerate(text):
        depth += (character in "{[(") - (character in ")]}")
        if depth == 0 and place < len(text) - 1:
            return False
    return depth == 0

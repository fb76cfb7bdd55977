"""Reads a number from an answer, exactly or not at all. (First form; deepened next.)"""

import re
from fractions import Fraction
from functools import lru_cache

Number = int | Fraction

_SIMPLE = re.compile(r"([-+−]?)\s*\$?\s*([1-9]\d{0,2}(?:,\d{3})+|\d{1,300})(?:\.(\d{1,300}))?\.?(?:\s+[a-z]+)?")


@lru_cache(maxsize=65536)
def read_number(text: str) -> Number | None:
    """The number an answer states, or None."""
    text = text.strip()
    if text.startswith("\\boxed{") and text.endswith("}"):
        text = text[7:-1]
    text = text.replace("{,}", ",")
    text = re.sub(r"^[a-z] = ", "", text)
    frac = re.fullmatch(r"\\frac\{(\d{1,300})\}\{(\d{1,300})\}", text)
    if frac and int(frac[2]):
        return Fraction(int(frac[1]), int(frac[2]))
    match = _SIMPLE.fullmatch(text)
    if not match or text.endswith(("thousand", "million", "dozen")):
        return None
    value = Fraction(match[2].replace(",", "") + "." + (match[3] or "0"))
    return -value if match[1] in ("-", "−") else value

r"""Reads a number from an answer: exactly, or not at all.

Called through `components.contract.answers`, and by the lenient reading. What does not change the value is put aside:
currency, well formed thousands groups, LaTeX wrappers and text units, markdown emphasis, a label or variable before the
number, words behind it, unicode digits and minus signs, white space, an end-of-turn token. What changes it is read
("12 thousand", "negative 7", "5 1/2", "1e3", "half a dozen") or makes the answer unreadable ("at least 5", "10 or 12",
"5-7", "3:30", "1.250,50", "12k", "nan"). The rule in doubt: refuse. docs/contract.md lists the decisions.

Limits: answers of more than 2,000 characters, and numbers of more than 300 digits or an exponent beyond 300, are no
numbers. Expressions ("2*3", "\sqrt{16}") are not evaluated here; LaTeX ones go to `latex.py`.
"""

import re
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import Literal

from components.contract.characters import plain_characters, without_end_tokens
from components.contract.number_tokens import MAX_EXPONENT, NoNumberError, Token, ratio, shape_of, tokens_of
from components.contract.words import (
    AFTER_REFUSED,
    ATTACHED_UNITS,
    BEFORE_REFUSED,
    COPULAS,
    DENOMINATORS,
    LABEL_ARTICLES,
    LABEL_FIRST_REFUSED,
    LABEL_LAST_REFUSED,
    LABEL_PAIRS,
    LABEL_REFUSED,
    NUMBER_WORDS,
    PERCENT_WORDS,
    SCALES,
    SIGN_WORDS,
    UNIT_LETTERS,
    read_number_words,
)

Number = int | Fraction
Percent = Literal["drop", "fraction", "refuse"]

MAX_CHARACTERS = 2000
_CACHED_LENGTH = 64

# --- the quick way: the forms that most answers have, in one match ---------------------------------------------------

_QUICK = re.compile(
    r"\s*(?P<boxed>\\boxed\{)?(?P<sign>-?)\$?"
    r"(?P<whole>\d{1,18}|[1-9]\d{0,2}(?:(?:,|\{,\})\d{3}){1,5})(?:\.(?P<decimals>\d{1,18}))?"
    r"(?: (?P<word>[a-z]{3,20}))?(?P<close>\})?\.?\s*"
)
_QUICK_FRACTION = re.compile(r"\s*(-?)\\[dt]?frac\{(-?\d{1,18})\}\{(\d{1,18})\}\s*")
_REFUSED_WORDS = AFTER_REFUSED | NUMBER_WORDS | SIGN_WORDS | frozenset(SCALES) | {*PERCENT_WORDS, "per", "and"}


def read_number(text: str, percent: Percent = "drop") -> Number | None:
    """The number an answer states.

    Args:
        text: the answer as read from a completion, or a gold answer.
        percent: what a percent sign means: nothing, a division by 100, or that this is no number.

    Returns:
        An int where the value is whole, else a Fraction in lowest terms; None where the text is not exactly one number.
    """
    if len(text) > _CACHED_LENGTH:
        text = text.strip()
    match = _QUICK.fullmatch(text) if len(text) <= _CACHED_LENGTH else None
    if match:
        boxed, sign, whole, decimals, word, close = match.groups()
        if (boxed is None) == (close is None) and (word is None or word not in _REFUSED_WORDS):
            if len(whole) > 3:
                whole = whole.replace("{,}", "").replace(",", "")
            if decimals is None or not (decimals := decimals.rstrip("0")):
                return -int(whole) if sign else int(whole)
            value = Fraction(int(whole + decimals), 10 ** len(decimals))
            return -value if sign else value
    if len(text) > _CACHED_LENGTH:
        return _read(text, percent)
    match = _QUICK_FRACTION.fullmatch(text)
    if match and (denominator := int(match[3])):
        value = Fraction(int(match[2]), denominator)
        value = -value if match[1] else value
        return value.numerator if value.denominator == 1 else value
    return _read_cached(text, percent)


def format_number(value: Number) -> str:
    """A number as text that reads as the same number: "12", "-1/2"."""
    if isinstance(value, int):
        return str(value)
    return f"{value.numerator}/{value.denominator}"


_VOWEL = re.compile(r"[aeiouà-öø-ɏ]|[mb]y")
_REVERSED = re.compile("[\u202d\u202e]")  # a reader sees the digits in another order
_RAISED = re.compile("([x×·*] ?10)([⁻⁺]?[⁰¹²³⁴⁵⁶⁷⁸⁹]{1,3})")
_SUPERSCRIPTS = str.maketrans("⁻⁺⁰¹²³⁴⁵⁶⁷⁸⁹", "-+0123456789")
_SCALED_CURRENCY = re.compile(r"[kKmMbBGT]{1,2}(?:EUR|USD|GBP|CHF|JPY|CNY|INR|SEK|NOK|DKK|PLN|AUD|CAD)")
_LETTERS = re.compile(r"[A-Za-zÀ-ÖØ-öø-ɏ'-]+")


@lru_cache(maxsize=65536)
def _read_cached(text: str, percent: Percent) -> Number | None:
    return _read(text, percent)


def _read(text: str, percent: Percent) -> Number | None:
    text = without_end_tokens(text).strip()
    if len(text) > MAX_CHARACTERS or _REVERSED.search(text):
        return None
    text = _RAISED.sub(lambda match: match[1] + "^" + match[2].translate(_SUPERSCRIPTS), text)
    try:
        value = _phrase_value(tokens_of(plain_characters(text).strip()), percent)
    except NoNumberError:
        return None
    return value.numerator if value.denominator == 1 else value


# --- the careful way: the grammar, written on the tokens' kinds -------------------------------------------------------

_ONE_NUMBER = re.compile(
    r"(?P<before>[^ndf]*?)(?P<sign>[-+])?(?P<money>r?\$*)(?P<inner>[-+])?"
    r"(?P<number>n[nd]/[nd]|nf|[nd]/[nd]|[nd]\*n\^|[nd]wn\^|[ndf])(?P<after>[^ndf]*)"
)
_BEFORE = re.compile(r"\*?(?:[$r>,.:;()\[\]\"#!]|w'?)*")
_AFTER = re.compile(r"(?:[$%°,.;:()\[\]\"!—/^e-]|w'?)*")
_NAME = re.compile(r"[w$r>,.:;()\[\]\"#_']*")


def _phrase_value(tokens: list[Token], percent: Percent) -> Fraction:
    """The value of a whole answer: an equation whose left side names or works out the number, or one number."""
    sides: list[list[Token]] = [[]]
    for token in tokens:
        if token.kind == "=":
            sides.append([])
        else:
            sides[-1].append(token)
    if len(sides) == 2 and _is_name(sides[1]) and not _is_name(sides[0]):
        sides.reverse()  # "12 = x"
    value = _side_value(sides[-1], percent)
    for place, side in enumerate(sides[:-1]):
        leading = place == 0 and not side  # "= 12"
        if not leading and not _is_name(side) and _arithmetic(side) != value:
            raise NoNumberError
    return value


def _is_name(tokens: list[Token]) -> bool:
    """Whether one side of "=" only names the value: "x", "x_1", "f(2)", "Total cost ($)", "**Answer**: x"."""
    words = [token for token in tokens if token.kind == "w"]
    shape = shape_of(tokens)
    for subscript in ("w_n", "w(n)", "wn"):
        place = shape.find(subscript)
        if place >= 0 and len(tokens[place].text) <= 2:
            shape = shape.replace(subscript, "w", 1)
            break
    if not words or not _NAME.fullmatch(shape):
        return False
    return _is_label([word.text.lower() for word in words])


def _is_label(words: list[str]) -> bool:
    """Whether words name a value without changing it."""
    if any(word in LABEL_REFUSED or word.endswith("n't") for word in words):
        return False
    if tuple(words[-2:]) in LABEL_PAIRS or words[-1] in LABEL_LAST_REFUSED:
        return False
    if any(pair in (("square", "root"), ("cube", "root")) for pair in pairwise(words)):
        return False
    named = words[next((place for place, word in enumerate(words) if word not in LABEL_ARTICLES), 0) :]
    if named[0] in LABEL_FIRST_REFUSED or (named[0] in DENOMINATORS and named[1:2] == ["of"]):
        return False
    return not all(word in NUMBER_WORDS for word in words)


def _arithmetic(tokens: list[Token]) -> Fraction:
    """The value of sums and products of plain numbers, as models write before "=": "9 * $2", "(7 + 5) / 2"."""
    kept = [token for token in tokens if token.kind not in "$r"]
    if len(kept) > 64:
        raise NoNumberError
    kinds = ["*" if token.text == "x" else token.kind for token in kept] + ["end"]
    place = 0

    def total() -> Fraction:
        nonlocal place
        value = product()
        while kinds[place] in "+-":
            place += 1
            value += product() if kinds[place - 1] == "+" else -product()
        return value

    def product() -> Fraction:
        nonlocal place
        value = factor()
        while kinds[place] in "*/":
            place += 1
            value = value * factor() if kinds[place - 1] == "*" else ratio(value, factor())
        return value

    def factor() -> Fraction:
        nonlocal place
        kind = kinds[place]
        place += 1
        if kind in "ndf":
            return kept[place - 1].value
        if kind == "-":
            return -factor()
        if kind != "(":
            raise NoNumberError
        value = total()
        if kinds[place] != ")":
            raise NoNumberError
        place += 1
        return value

    value = total()
    if kinds[place] != "end":
        raise NoNumberError
    return value


def _side_value(tokens: list[Token], percent: Percent) -> Fraction:
    """The value of words around one number."""
    shape = shape_of(tokens)
    if not any(kind in shape for kind in "ndf"):
        return _written_out(tokens)
    match = _ONE_NUMBER.fullmatch(shape)
    if match is None or (match["sign"] and match["inner"]):
        raise NoNumberError
    start, end = match.span("number")
    before, after = tokens[: match.end("before")], tokens[end:]
    core = tokens[len(before) : start]  # sign and currency
    value = _number_value(tokens[start:end], shape[start:end])
    if match["sign"] or match["inner"]:
        sign = next(token for token in core if token.kind in "+-")
        touching = tokens[tokens.index(sign) + 1].gap < 2
        _check_sign_place(before, core[0].gap, touching=touching or match["inner"] is not None)
        value = -value if sign.text == "-" else value
    elif before and before[-1].text.lower() in SIGN_WORDS and tokens[len(before)].gap:
        before = before[:-1]
        _check_sign_place(before, 2, touching=False)
        value = -value
    _check_brackets(before, core, after)
    _check_before(before, tokens[len(before)] if len(before) < len(tokens) else None)
    return _with_scale(value, after, percent, money="$" in shape or "r" in shape)


def _number_value(tokens: list[Token], shape: str) -> Fraction:
    """The value of a literal, a fraction, a mixed number or a power of ten."""
    first, last = tokens[0], tokens[-1]
    if len(tokens) == 1:
        return first.value
    if last.kind == "^":  # 1.2 x 10^3
        exponent = int(last.value)
        if tokens[1].text not in ("x", "X", "*", "×", "·", "times", "cdot") or tokens[2].text != "10":
            raise NoNumberError
        if abs(exponent) > MAX_EXPONENT:
            raise NoNumberError
        return first.value * Fraction(10) ** exponent
    if shape == "nf":
        return first.value + _proper(last.value)
    numerator = tokens[-3]
    if " " in numerator.text + last.text:  # "5 100/200" could be mixed or grouped
        raise NoNumberError
    quotient = ratio(numerator.value, last.value)
    if len(tokens) == 3:
        return quotient
    if shape != "nn/n" or not numerator.gap:
        raise NoNumberError
    return first.value + _proper(quotient)


def _proper(part: Fraction) -> Fraction:
    if not 0 < part < 1:
        raise NoNumberError
    return part


def _check_sign_place(before: list[Token], gap: int, *, touching: bool) -> None:
    """Refuse a sign that could join two terms: "x - 12", "x-12", "Answer - 12", "ten minus 12"."""
    if not before:
        return
    last = before[-1]
    if last.kind in '>:.;,(["#':
        return
    if last.kind == "w" and gap == 2:
        if last.text.lower() in COPULAS:
            return
        if touching and len(last.text) > 1 and last.text.lower() not in NUMBER_WORDS:
            return
    raise NoNumberError


def _check_brackets(before: list[Token], core: list[Token], after: list[Token]) -> None:
    """Refuse brackets that do not pair, and those that mean more than grouping: f(12), ($12), -(12)."""
    if shape_of(before[:2]) == "w)" and len(before[0].text) == 1:
        before = before[2:]  # "B) 12"
    opened: list[int] = []
    for place, token in enumerate(before):
        if token.kind in "([":
            opened.append(place)
        elif token.kind in ")]" and (not opened or before[opened.pop()].kind + token.kind not in ("()", "[]")):
            raise NoNumberError
    for place in opened:  # around the number
        touched = before[place - 1] if place and before[place].gap < 2 else None
        money = any(token.kind in "$r" for token in (*before[place:], *core))
        if money or (touched is not None and touched.kind in "w$r"):
            raise NoNumberError
    stack = [before[place].kind for place in opened]
    for token in after:
        if token.kind in "([":
            stack.append(token.kind)
        elif token.kind in ")]" and (not stack or stack.pop() + token.kind not in ("()", "[]")):
            raise NoNumberError
    if stack:
        raise NoNumberError


def _check_before(before: list[Token], first: Token | None) -> None:
    """Refuse a text before the number that is not only a label or neutral words.

    Args:
        before: tokens before sign, currency and number.
        first: the token behind them.
    """
    if not before:
        return
    if not _BEFORE.fullmatch(shape_of(before)):
        raise NoNumberError
    last = before[-1]
    if first is not None and first.gap == 0 and last.kind not in '(["#:>':
        raise NoNumberError  # x12, ,250, !12
    if before[0].kind == "*" and (len(before) < 2 and first is not None and first.gap < 2):
        raise NoNumberError
    label_end = _label_end(before)
    label = [token.text.lower() for token in before[:label_end] if token.kind == "w" and len(token.text) > 1]
    if label and not _is_label(label):
        raise NoNumberError
    for place, token in enumerate(before):
        if token.kind == "w" and place >= label_end:
            _check_word_before(token.text, before[place + 1] if place + 1 < len(before) else None)


def _label_end(tokens: list[Token]) -> int:
    """Where the label ends: behind the last ":" or copula ("is", "equals"); 0 without one."""
    for place in range(len(tokens) - 1, -1, -1):
        token = tokens[place]
        if token.kind == ":" or (token.kind == "w" and token.text.lower() in COPULAS):
            return place + 1
    return 0


def _check_word_before(text: str, following: Token | None) -> None:
    word = text.lower()
    if not _LETTERS.fullmatch(text) or word.endswith("n't"):
        raise NoNumberError
    if any(part in BEFORE_REFUSED for part in (word, *word.split("-"))):
        raise NoNumberError
    if len(word) == 1:
        enumerates = following is not None and following.kind in ").]"
        article = word in "ai" and following is not None and following.kind == "w"
        if not enumerates and not article:
            raise NoNumberError


def _with_scale(value: Fraction, after: list[Token], percent: Percent, *, money: bool) -> Fraction:
    """The value with what stands directly behind it: scale words, "and a half", a percent sign."""
    place = 0
    while place < len(after) and after[place].kind in "%°$":
        place += 1
    hundredth = "%" in shape_of(after[:place])
    words = [token.text.lower() for token in after[place : place + 3] if token.kind == "w"]
    if place == 0 and words and after[0].kind == "w" and after[0].gap:
        if words == ["and", "a", "half"] and value.denominator == 1 and shape_of(after[:3]) == "www":
            value += Fraction(1, 2) if value >= 0 else Fraction(-1, 2)
            place = 3
        while place < len(after) and after[place].kind == "w" and after[place].text.lower() in SCALES:
            value *= SCALES[after[place].text.lower()]
            place += 1
        if place == 0 and words[0] in PERCENT_WORDS:
            hundredth, place = True, 1
        elif place == 0 and words[:2] == ["per", "cent"]:
            hundredth, place = True, 2
    _check_after(after, place, money=money)
    later = percent != "drop" and any(token.text.lower() in PERCENT_WORDS for token in after[place:])
    if later or (hundredth and percent == "refuse"):
        raise NoNumberError
    return value / 100 if hundredth and percent == "fraction" else value


def _check_after(after: list[Token], start: int, *, money: bool) -> None:
    """Refuse a text behind the number that is not only a unit or neutral words.

    Args:
        after: tokens behind the number.
        start: how many of them have been read.
        money: whether a currency stands in the answer ("$12 m" are millions).
    """
    if not _AFTER.fullmatch(shape_of(after)):
        raise NoNumberError
    seen_word = False
    for place in range(start, len(after)):
        token = after[place]
        following = after[place + 1] if place + 1 < len(after) else None
        if token.kind == "w":
            next_word = following if following is not None and following.kind == "w" else None
            _check_word_after(token.text, next_word, touching=place == 0 and token.gap == 0, money=money)
            seen_word = True
        elif not _may_follow(token, after[place - 1] if place else None, following, seen_word=seen_word):
            raise NoNumberError


def _may_follow(token: Token, previous: Token | None, following: Token | None, *, seen_word: bool) -> bool:
    """Whether a sign behind the number leaves its value alone.

    Args:
        token: the sign, no word.
        previous: the token before it, None directly behind the number.
        following: the token behind it.
        seen_word: whether a word stands between the number and the sign.
    """
    word = following.text if following is not None and following.kind == "w" else ""
    match token.kind:
        case "/":  # 60 km/h, 18/day; the word is looked at next
            return bool(word) and (seen_word or len(word) > 1)
        case "-":  # a 12-inch pipe
            closely = token.gap == 0 and following is not None and following.gap == 0
            return previous is None and closely and len(word) > 1
        case "^" | "e":  # m^2, cm³
            return previous is not None and previous.kind == "w" and token.value in (0, 2, 3)
        case "!" | ":":  # directly behind the number: a factorial, a clock time
            return seen_word
        case ".":  # 0.333...
            return following is None or following.kind != "."
        case "—":
            return token.gap == 2 and following is not None and following.gap == 2
        case "%":
            return False
    return True


def _check_word_after(text: str, next_word: Token | None, *, touching: bool, money: bool) -> None:
    word = text.lower()
    if not _LETTERS.fullmatch(text) or word.endswith("n't") or text in ("MM", "BN", "MN"):
        raise NoNumberError
    if _SCALED_CURRENCY.fullmatch(text) or (len(text) == 3 and word.endswith("'s")):
        raise NoNumberError  # 12 kEUR, 12 G's
    if any(part in AFTER_REFUSED for part in (word, *word.split("-"))):
        raise NoNumberError
    if len(text) == 1:
        article = word in "ai" and next_word is not None and not touching
        unit = text in UNIT_LETTERS and not money
        if not article and not unit:
            raise NoNumberError
    elif touching and text not in ATTACHED_UNITS and not (len(text) >= 4 and text.islower()):
        raise NoNumberError
    elif len(text) == 2 and text not in ATTACHED_UNITS and not _VOWEL.search(word):
        raise NoNumberError  # two variables, an ordinal's ending
    if word in ("and", "to") and (next_word is None or next_word.text.lower() in ("more", "change")):
        raise NoNumberError


def _written_out(tokens: list[Token]) -> Fraction:
    """The value of a number in words: "twelve", "The answer is negative seven", "half a dozen eggs"."""
    label_end = _label_end(tokens)
    label = [token.text.lower() for token in tokens[:label_end] if token.kind == "w"]
    if (label and not _is_label(label)) or not re.fullmatch(r"[w().,:\"]*", shape_of(tokens)):
        raise NoNumberError
    words = [part for token in tokens[label_end:] if token.kind == "w" for part in token.text.lower().split("-")]
    negative = bool(words) and words[0] in SIGN_WORDS
    words = words[negative:]
    for count in range(min(len(words), 24), 0, -1):
        value = read_number_words(words[:count])
        if value is None:
            continue
        rest = words[count:]
        if rest == ["and", "a", "half"] and value.denominator == 1:
            value, rest = value + Fraction(1, 2), []
        if len(rest) > 4 or any(w in AFTER_REFUSED or w in ("and", "of", "to") or len(w) == 1 for w in rest):
            break
        return -value if negative else value
    raise NoNumberError

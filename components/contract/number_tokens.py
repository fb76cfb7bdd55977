r"""Cuts an answer into the tokens that the number reader's grammar is written on.

Used by `components.contract.number` only. An answer becomes a list of tokens, and the tokens' kinds, one letter each, a
short string (the shape). LaTeX wrappers, markdown emphasis and blanks become the gaps between tokens. A character or
command that no readable answer has ("<", "~", "±", `\sqrt`) makes it unreadable at once.

Kinds: n bare digits, d another literal, f fraction (`\frac`, ½), w word, r currency word in front of a number, $
currency, + - signs, % percent, ° degree, ^ power, e unit exponent (²), * times, > arrow, = equals, and punctuation as
it is.
"""

import re
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from components.contract.words import CURRENCY_WORDS, DOLLAR_PREFIXES

MAX_DIGITS = 300
MAX_EXPONENT = 300


class NoNumberError(ValueError):
    """The text is not exactly one number."""


@dataclass(slots=True)
class Token:
    """A piece of an answer.

    Args:
        kind: one letter, see above.
        text: as written.
        gap: what stands before it: 0 nothing, 1 a LaTeX or markdown wrapper's edge, 2 a blank.
        value: of a literal, a fraction or a power.
    """

    kind: str
    text: str
    gap: int
    value: Fraction = Fraction(0)


_LETTER = r"[^\W\d_²³¼-¾⅐-↋]"
_EXPONENT = r"(?:[eE][+-]?\d+(?![\w.]))?"
_LEX = re.compile(
    rf"""
      (?P<literal>(?:[1-9]\d{{0,2}}(?P<sep>[,\ _'])\d{{3}}(?:(?P=sep)\d{{3}})*(?!\d)|\d+)(?:\.\d+)?{_EXPONENT}
                 |\.\d+{_EXPONENT})
    | (?P<frac>\\[dtc]?frac(?![A-Za-z])\s*(?:\{{([^{{}}]{{0,400}})\}}|(\d))\s*(?:\{{([^{{}}]{{0,400}})\}}|(\d)))
    | (?P<vulgar>[¼½¾⅐-⅞])
    | (?P<degree>°|\\degree(?![A-Za-z])|\^\s*(?:\\circ(?![A-Za-z])|\{{\s*\\circ\s*\}}))
    | (?P<power>\^\s*(?:[+-]?\d{{1,4}}(?!\d)|\{{\s*[+-]?\d{{1,4}}\s*\}}))
    | (?P<arrow>=>|->|→|⇒|∴)
    | (?P<equals>==?)
    | (?P<command>\\(?:[A-Za-z]+\*?|.))
    | (?P<rupees>Rs\.(?=\ ?\d))
    | (?P<word>{_LETTER}+(?:['-]{_LETTER}+)*)
    | (?P<blank>[ \t\n]+)
    | (?P<brace>[{{}}\x1f])
    | (?P<symbol>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_SYMBOLS = {
    **dict(zip(",.:;()[]\"!/_'#+-%—", ",.:;()[]\"!/_'#+-%—", strict=True)),
    **dict.fromkeys("×·*", "*"),
    **dict.fromkeys("²³", "e"),
    **dict.fromkeys("$€£¥₹₽₩₺₫₴₦฿₱₪¢₡₲₵₸₼₾￥￡", "$"),
    "•": "#",
    "÷": "/",
}
"""Kinds of the single characters that may stand in an answer; any other makes it unreadable ("<", "~", "±", "√")."""

_WRAPPERS = frozenset(
    """boxed fbox mbox framebox text textbf textit textrm textsf texttt textnormal emph underline mathrm mathbf mathit
    mathsf mathtt mathnormal boldsymbol bm operatorname displaystyle textstyle left right bf rm it tt sf big Big bigl
    bigr quad qquad large Large LARGE small huge Huge ( ) [ ]""".split()  # noqa: SIM905
)
_COMMANDS = {
    **dict.fromkeys(("$", "pounds", "euro", "yen", "texteuro", "textdollar", "textsterling"), "$"),
    **dict.fromkeys(
        ("therefore", "implies", "Rightarrow", "rightarrow", "Longrightarrow", "longrightarrow", "to"), ">"
    ),
    **dict.fromkeys(("times", "cdot"), "*"),
    "%": "%",
    "div": "/",
    "#": "#",
}
_NAMES = frozenset(  # letters, as variables are; not pi, which is a number
    (
        "alpha",
        "beta",
        "gamma",
        "delta",
        "epsilon",
        "theta",
        "lambda",
        "mu",
        "phi",
        "rho",
        "sigma",
        "tau",
        "omega",
        "ell",
    )
)
_NOUNS = frozenset(("angle", "triangle"))
_SPACES = re.compile(r"\\[,;: ]|\\thinspace(?![A-Za-z])|~(?=\\)|(?<=\})~")
_EMPHASIS = re.compile(r"(?<![\w*`'])(\*{1,3}|`{1,3}|_{1,3}|')(?=[^\s*_`'])([^*`\n]*?[^\s*_`]|[^\s*_`])\1(?![\w*`'])")
_FENCE = re.compile(r"```\w*\n([^`]*)\n```")
_VULGAR = {
    **{"¼": (1, 4), "½": (1, 2), "¾": (3, 4), "⅐": (1, 7), "⅑": (1, 9), "⅒": (1, 10), "⅓": (1, 3), "⅔": (2, 3)},
    **{"⅕": (1, 5), "⅖": (2, 5), "⅗": (3, 5), "⅘": (4, 5), "⅙": (1, 6), "⅚": (5, 6), "⅛": (1, 8), "⅜": (3, 8)},
    **{"⅝": (5, 8), "⅞": (7, 8)},
}


def tokens_of(text: str) -> list[Token]:
    """Cut an answer into tokens; wrappers and blanks become the gaps between them."""
    if "\\" in text or "{" in text:
        text = _SPACES.sub(" ", text.replace("\\!", "").replace("{,}", ","))
    fenced = _FENCE.fullmatch(text)
    text = fenced[1] if fenced else text
    for _ in range(3):
        text, count = _EMPHASIS.subn("\x1f\\2\x1f", text)
        if not count:
            break
    tokens: list[Token] = []
    gap = depth = 0
    for match in _LEX.finditer(text):
        name, piece = str(match.lastgroup), match[0]
        token: Token | None = None
        if match["literal"] is not None:
            token = Token("n" if piece.isdigit() else "d", piece, gap, _literal(piece))
        elif name == "word":
            token = Token("w", piece, gap)
        elif name == "blank":
            gap = 2
        elif name == "brace":
            depth += (piece == "{") - (piece == "}")
            if depth < 0:
                raise NoNumberError
            gap = max(gap, 1)
        elif name == "command":
            token = _command(piece[1:], gap)
            gap = max(gap, 1)
        elif name == "symbol":
            if piece not in _SYMBOLS:
                raise NoNumberError
            token = Token(_SYMBOLS[piece], piece, gap)
        elif match["frac"] is not None:
            token = Token("f", piece, gap, _latex_fraction(match))
        elif name == "vulgar":
            token = Token("f", piece, gap, Fraction(*_VULGAR[piece]))
        elif name == "power":
            token = Token("^", piece, gap, Fraction(piece.strip("^{} \t\n")))
        else:
            token = Token({"degree": "°", "arrow": ">", "equals": "=", "rupees": "$"}[name], piece, gap)
        if token is not None:
            tokens.append(token)
            gap = 0
    if depth:
        raise NoNumberError
    for token, following in pairwise(tokens):
        touches = following.gap == 0 or (len(token.text) == 3 and token.text.isupper())
        before = "$" if token.text in DOLLAR_PREFIXES else "nd$"
        if token.kind == "w" and token.text in CURRENCY_WORDS and following.kind in before and touches:
            token.kind = "r"
    return tokens


def _command(name: str, gap: int) -> Token | None:
    """The token for a LaTeX command, None for a wrapper."""
    if name in _WRAPPERS:
        return None
    if name in _NAMES or name in _NOUNS:
        return Token("w", name if name in _NOUNS else name[0], gap)
    if name in _COMMANDS:
        return Token(_COMMANDS[name], name, gap)
    raise NoNumberError


def _literal(text: str) -> Fraction:
    """The value of a number literal, with thousands groups and an exponent."""
    digits = re.sub(r"[, _']", "", text)
    mantissa, _, exponent = digits.lower().partition("e")
    if len(mantissa) > MAX_DIGITS or len(exponent) > 5 or abs(int(exponent or 0)) > MAX_EXPONENT:
        raise NoNumberError
    return Fraction(digits)


def _latex_fraction(match: re.Match[str]) -> Fraction:
    """The value of a fraction whose parts are plain numbers with at most a sign."""
    parts = [part.strip() for part in match.groups()[3:7] if part is not None]
    values = []
    for part in parts:
        unsigned = part.removeprefix("-").strip()
        literal = _LEX.fullmatch(unsigned)
        if literal is None or literal["literal"] is None:
            raise NoNumberError
        values.append(_literal(unsigned) * (-1 if part.startswith("-") else 1))
    return ratio(*values)


def ratio(numerator: Fraction, denominator: Fraction) -> Fraction:
    """A quotient; raises NoNumberError for a division by zero."""
    if not denominator:
        raise NoNumberError
    return numerator / denominator


def shape_of(tokens: list[Token]) -> str:
    """The kinds of tokens as one string."""
    return "".join(token.kind for token in tokens)

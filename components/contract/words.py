"""English words that carry a value, and words that change the value of a number beside them.

Data of the number reader, with the one function that reads a number written out. The lists lean towards refusing: a
word in doubt makes an answer unreadable, it is never dropped. Short lists of other languages cover the words that
would otherwise pass as units ("12 mil", "12 tausend").
"""

# ruff: noqa: SIM905  (words in a string are easier to read and to add to than a column of literals)
import re
from fractions import Fraction
from itertools import pairwise

SCALES = {
    **dict.fromkeys(("hundred", "hundreds"), 100),
    **dict.fromkeys(("thousand", "thousands"), 1_000),
    **dict.fromkeys(("million", "millions"), 1_000_000),
    **dict.fromkeys(("billion", "billions"), 1_000_000_000),
    **dict.fromkeys(("trillion", "trillions"), 1_000_000_000_000),
    **dict.fromkeys(("dozen", "dozens"), 12),
    **dict.fromkeys(("lakh", "lakhs"), 100_000),
    **dict.fromkeys(("crore", "crores"), 10_000_000),
}
"""Words behind a number that multiply it."""

_ONES = {w: n for n, w in enumerate("one two three four five six seven eight nine".split(), start=1)}
_TEENS = {
    w: n
    for n, w in enumerate(
        "ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen".split(), start=10
    )
}
_TENS = {w: 10 * n for n, w in enumerate("twenty thirty forty fifty sixty seventy eighty ninety".split(), start=2)}
_DENOMINATORS = {
    **dict.fromkeys(("half", "halves"), 2),
    **dict.fromkeys(("third", "thirds"), 3),
    **dict.fromkeys(("quarter", "quarters", "fourth", "fourths"), 4),
    **dict.fromkeys(("fifth", "fifths"), 5),
    **dict.fromkeys(("sixth", "sixths"), 6),
    **dict.fromkeys(("seventh", "sevenths"), 7),
    **dict.fromkeys(("eighth", "eighths"), 8),
    **dict.fromkeys(("ninth", "ninths"), 9),
    **dict.fromkeys(("tenth", "tenths"), 10),
    **dict.fromkeys(("hundredth", "hundredths"), 100),
    **dict.fromkeys(("thousandth", "thousandths"), 1000),
}


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


NUMBER_WORDS = (
    _words(
        """zero nil nought first twelfth once twice thrice double triple quadruple doubled tripled quadrupled halved
        squared cubed couple couples few several score scores gross grand myriad myriads tens quadrillion quintillion
        sextillion septillion octillion nonillion decillion zillion zillions gazillion googol
        millionth millionths billionth mil mill mln bln bn mn tn trn mio mrd tsd thou lac lacs mille mila tausend
        millionen millones millón milliard milliards milliarde milliarden millardo dutzend docena docenas douzaine demi
        halb medio moitié cien ciento hundert mitad hälfte tausende hunderte millier milliers douzaines cientos cientas
        milhão milhões bilhão bilhões milioni milione milioane milion miliony milionów miljoen miljoenen miljon miljoner
        tysiąc tysiące tysięcy tisíc tisíce tusen tusind tuhat duizend ezer millió ribu juta"""
    )
    | _ONES.keys()
    | _TEENS.keys()
    | _TENS.keys()
    | SCALES.keys()
    | _DENOMINATORS.keys()
)
"""Words that are a number or make another number of the one beside them."""

_NEGATIONS = _words(
    """not no never none neither nor cannot without except excluding besides but unlike wrong incorrect incorrectly
    false impossible undefined unknown untrue isnt arent wasnt dont doesnt didnt wont cant couldnt shouldnt wouldnt
    nicht     kein keine pas nan inf infinity infinite infinitely indeterminate"""
)
_APPROXIMATIONS = _words(
    "about approximately approx roughly nearly almost circa ca ish or either versus vs oder etwa casi"
)
_LOOSE_APPROXIMATIONS = _words("around close closer near hardly barely estimated ungefähr environ presque unos unas ou")
_BOUNDS = _words(
    """least most than minimum maximum min max mindestens höchstens counting upwards downwards over under above below
    beyond beneath exceeds exceed exceeding less fewer lesser lower between upward tops exclusive weniger mehr menos
    moins"""
)
_SIGNS = _words("minus negative neg plus meno negativo negativ opposite loss debt deficit")

LABEL_REFUSED = (
    _NEGATIONS
    | _APPROXIMATIONS
    | _words("minus plus divided multiplied squared cubed sqrt log ln lg sin cos tan exp excess tens")
    | {word for word in SCALES if word.endswith("s")}
)
"""Words that make a label no label: "not x = 12", "x squared = 12", "Thousands of dollars: 12"."""

LABEL_ARTICLES = _words("a an the one so thus therefore hence then and that")
"""Words in front of what a label names."""

LABEL_FIRST_REFUSED = _words("twice thrice double triple quadruple half negative neg opposite")
"""Words that make a label no label when it begins with them: "twice x = 12"."""

LABEL_LAST_REFUSED = _words(
    "minus negative greater larger bigger smaller higher lower more less fewer mln bln bn mn tn"
) | frozenset(SCALES)
"""Words that make a label no label when it ends with them: "the answer is greater: 12", "Revenue (million): 12"."""

LABEL_PAIRS = frozenset(
    {("at", "least"), ("at", "most"), ("up", "to"), ("close", "to"), ("upper", "bound"), ("lower", "bound")}
    | {(w, "than") for w in "more less fewer greater larger bigger smaller higher lower".split()}
)
"""Two words that make a label a bound when they end it: "at least: 12"."""

BEFORE_REFUSED = (
    _NEGATIONS
    | _APPROXIMATIONS
    | _LOOSE_APPROXIMATIONS
    | _BOUNDS
    | _SIGNS
    | NUMBER_WORDS
    | _words(
        """more greater larger bigger smaller higher longer shorter older younger taller exceeded past minimal maximal
        upper bound limit limited up down within inside outside before after since until till from through thru by some
        and add added adding subtract subtracted subtracting times multiply multiplied product quotient ratio difference
        divide divided square cube root roots sqrt power log ln lg sin cos tan exp abs absolute factorial mod modulo
        inverse reciprocal excess shy increase increased decrease decreased decreasing reduce reduced drop dropped
        drops fell falls lost lose loses owe owes owed owing short shortage overdrawn percentage choose floor ceil
        ceiling round pair pairs many much entre bis über unter más mas von"""
    )
)
"""Words before a number that would change what it says."""

AFTER_REFUSED = (
    _NEGATIONS
    | _APPROXIMATIONS
    | (_LOOSE_APPROXIMATIONS - {"close"})
    | (_BOUNDS - {"between"})
    | _SIGNS
    | NUMBER_WORDS
    | _words(
        """am pm noon midnight oclock o'clock bc bce odd something some up fold root sqrt pi log ln sin cos tan exp mod
        modulo factorial choose shy thereabouts etc through thru bps basis permille ppm divided multiplied subtracted
        added short larger greater smaller bigger higher uhr"""
    )
)
"""Words behind a number that would change what it says."""

COPULAS = _words("is are was were be equals equal being gives yields becomes makes")
"""Words that end a label: "the total is 12"."""

DENOMINATORS = frozenset(_DENOMINATORS)
"""Words that divide what they are "of": "a third of the answer"."""

SIGN_WORDS = _words("minus negative")
"""Words directly before a number that negate it."""

PERCENT_WORDS = _words("percent percents pct")
"""Words for a percent sign, besides "per cent"."""

CURRENCY_WORDS = _words(
    """USD EUR GBP JPY CNY INR CAD AUD CHF RMB Rs US CA AU HK NZ R C A S NT MX SGD HKD NZD BRL KRW RUB ZAR SEK NOK DKK
    PLN"""
)
"""Words that may touch a number or its currency sign from the front: "USD12", "US$12"."""

DOLLAR_PREFIXES = _words("US CA AU HK NZ C A S NT MX")
"""Those that only stand before a currency sign: "A$12" is money, "A12" is not."""

ATTACHED_UNITS = _words(
    """mm cm dm km nm mi ft yd yds in kg mg lb lbs oz ml mL cl dl hr hrs min mins sec secs ms yr yrs wk wks mo mph kph
    sq kmh kWh kW MW Hz kHz MHz GHz KB MB GB TB kB USD EUR GBP INR Rs pts pt pcs pc qt gal cal kcal deg rad cc kN kJ kPa
    Pa mol"""
)
"""Units that may touch a number from behind, besides words of four letters and more."""

UNIT_LETTERS = frozenset("mgshlLWVNJCFAd")
"""Single letters that may stand behind a number as a unit; other letters are variables or scales."""

_CLASSES = {
    **dict.fromkeys(_ONES, "u"),
    **dict.fromkeys(_TEENS, "t"),
    **dict.fromkeys(_TENS, "T"),
    "zero": "z",
    "hundred": "h",
    "thousand": "S",
    "million": "S",
    "billion": "S",
    "trillion": "S",
    "dozen": "d",
    "and": "n",
    "a": "a",
    "an": "a",
    **dict.fromkeys(_DENOMINATORS, "D"),
}
_BELOW_100 = r"(?:Tu?|t|u)"
_GROUP = rf"(?:(?:{_BELOW_100}|a)?h(?:n?{_BELOW_100})?|{_BELOW_100}|a(?=S))"
_CARDINAL = re.compile(rf"z|(?:{_GROUP}S)+(?:n?{_GROUP})?|{_GROUP}")
_DOZENS = re.compile(rf"(?:{_BELOW_100}|a)?d")
_FRACTION = re.compile(rf"(?:{_BELOW_100}|a)D")


def read_number_words(words: list[str]) -> Fraction | None:
    """The value of a number written out in full.

    Args:
        words: lower-case words, hyphens split ("twenty", "five").

    Returns:
        The value, or None when the words are not one number: "twelve" and "two thirds" are, "half of it" is not.
    """
    if words in (["half"], ["half", "a", "dozen"], ["half", "dozen"]):
        return Fraction(1, 2) if len(words) == 1 else Fraction(6)
    try:
        shape = "".join(_CLASSES[word] for word in words)
    except KeyError:
        return None
    if _FRACTION.fullmatch(shape):
        if words[-1] in ("quarter", "half", "third") and words[0] in ("a", "an", "one"):
            return None if words[-2:] == ["a", "quarter"] else Fraction(1, _DENOMINATORS[words[-1]])
        if words[0] in ("a", "an"):
            return None
        return Fraction(_sum(words[:-1]), _DENOMINATORS[words[-1]])
    if _DOZENS.fullmatch(shape):
        return Fraction(12 * (_sum(words[:-1]) or 1))
    if not _CARDINAL.fullmatch(shape):
        return None
    scales = [SCALES[word] for word in words if _CLASSES[word] == "S"]
    if any(low >= high for high, low in pairwise(scales)):
        return None
    return Fraction(_sum(words))


def _sum(words: list[str]) -> int:
    """The value of cardinal words whose order has been checked; articles count as one."""
    total = current = 0
    for word in words:
        kind = _CLASSES[word]
        if kind in "utT":
            current += _ONES.get(word) or _TEENS.get(word) or _TENS[word]
        elif kind == "a":
            current += 1
        elif kind == "h":
            current = (current or 1) * 100
        elif kind == "S":
            total += (current or 1) * SCALES[word]
            current = 0
    return total + current

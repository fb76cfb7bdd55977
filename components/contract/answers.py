"""When two answers are equal, by the kind of answer that the contract is configured for.

Called by `components.contract.contract`. Numbers are compared as exact fractions unless a tolerance is configured;
LaTeX beyond plain numbers goes through math-verify; texts, choices, sets and lists are compared normalised. Never
raises on any text. Where the kind is `number` and the gold answer is none, it is compared by its look, as kind `auto`
does with every gold; dataset preparation still refuses such rows (`readable`).
"""

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Literal

from components.contract.config import AnswerConfig
from components.contract.latex import canonical, equal_latex, is_constant, looks_like_latex
from components.contract.number import Number, format_number, read_number
from components.contract.texts import normalise_text, read_choice, split_items

Look = Literal["number", "constant", "latex", "set", "list", "choice", "text", "nothing"]
_NOTHING = frozenset(
    ("", "nan", "inf", "infinity", "none", "null", "n/a", "na", "+inf", "-inf", "+infinity", "-infinity")
)

MAX_DEPTH = 4
"""Lists inside lists are compared this deep."""
MAX_UNLIKE = 6
"""So many values of a set or list may be written in another way than the gold's; more are taken for different."""


@dataclass(frozen=True)
class Equality:
    """Compares answers.

    Args:
        config: the contract's `answer` section.
    """

    config: AnswerConfig

    def __post_init__(self) -> None:
        exact = not self.config.tolerance and not self.config.relative_tolerance
        object.__setattr__(self, "_exact", exact)
        object.__setattr__(self, "_percent", self.config.percent)
        object.__setattr__(self, "_numeric", self.config.kind in ("number", "latex", "auto"))

    _exact = True
    _percent: Literal["drop", "fraction", "refuse"] = "drop"
    _numeric = True

    def equal(self, answer: str, gold: str) -> bool:
        """Whether an answer has the gold answer's value.

        Args:
            answer: the answer as read from a completion.
            gold: the gold answer.
        """
        if self._numeric:
            right = _gold_number(gold, self._percent)
            if right is not None:
                return self._equal_to_number(answer, right)
        return self._equal_by_kind(answer, gold)

    def _equal_to_number(self, answer: str, right: Number) -> bool:
        left = read_number(answer, self._percent)
        if left is None:
            return looks_like_latex(answer) and equal_latex(answer, _as_latex(right), number=True)
        return left == right if self._exact else self._near(left, right)

    def _near(self, left: Number, right: Number) -> bool:
        absolute = Fraction(str(self.config.tolerance))
        difference = Fraction(left) - Fraction(right)
        relative = Fraction(str(self.config.relative_tolerance)) * abs(Fraction(right))
        return abs(difference) <= max(absolute, relative)

    def _equal_by_kind(self, answer: str, gold: str) -> bool:
        match self.config.kind:
            case "text":
                return self._equal_texts(answer, gold)
            case "choice":
                return self._equal_choices(answer, gold)
            case "set" | "list":
                return self._equal_items(answer, gold, ordered=self.config.kind == "list")
            case "latex":
                return equal_latex(answer, gold, number=False)
            case _:
                return self._equal_by_look(answer, gold)

    def _equal_by_look(self, answer: str, gold: str) -> bool:
        match self.look(gold):
            case "constant":
                return equal_latex(answer, gold, number=True)
            case "latex":
                return equal_latex(answer, gold, number=False)
            case "set":
                return self._equal_items(answer, gold, ordered=False)
            case "list":
                return self._equal_items(answer, gold, ordered=True)
            case "choice":
                return self._equal_choices(answer, gold)
            case "text":
                return self._equal_texts(answer, gold)
            case _:
                return False

    def look(self, gold: str) -> Look:
        """What kind of answer a gold answer looks like; "nothing" when it is none (nan, empty)."""
        if read_number(gold, self._percent) is not None:
            return "number"
        plain = canonical(gold)
        if plain.casefold() in _NOTHING:
            return "nothing"
        if is_constant(gold):
            return "constant"
        if read_choice(gold, self.config.choices):
            return "choice"
        braces = plain.startswith(("\\{", "{")) and plain.endswith("}")
        if braces and split_items(plain) is not None:
            return "set"
        items = split_items(plain)
        if items is not None and len(items) > 1 and all(self._number(item) is not None for item in items):
            return "list"
        return "latex" if looks_like_latex(gold) else "text"

    def _number(self, text: str) -> Number | None:
        return read_number(text, self._percent)

    def _equal_texts(self, answer: str, gold: str) -> bool:
        right = self._text(gold)
        return bool(right) and right not in _NOTHING - {"none", "null", "na", "n/a"} and self._text(answer) == right

    def _text(self, text: str) -> str:
        return normalise_text(text, case_sensitive=self.config.case_sensitive)

    def _equal_choices(self, answer: str, gold: str) -> bool:
        right = read_choice(gold, self.config.choices)
        return right is not None and read_choice(answer, self.config.choices) == right

    def _equal_items(self, answer: str, gold: str, *, ordered: bool, depth: int = 0) -> bool:
        left, right = split_items(answer), split_items(gold)
        if left is None or right is None or depth > MAX_DEPTH:
            return False
        given = [(self._item_key(item), item) for item in left]
        wanted = [(self._item_key(item), item) for item in right]
        if ordered:
            if len(given) != len(wanted):
                return False
            others = [(a, g) for (a_key, a), (g_key, g) in zip(given, wanted, strict=True) if a_key != g_key]
            return len(others) <= MAX_UNLIKE and all(self._same_item(a, g, depth) for a, g in others)
        shared = {key for key, _ in given} & {key for key, _ in wanted}
        more = list({key: item for key, item in given if key not in shared}.values())
        less = list({key: item for key, item in wanted if key not in shared}.values())
        if len(more) != len(less) or len(more) > MAX_UNLIKE:
            return False
        return all(any(self._same_item(a, g, depth) for a in more) for g in less)

    def _item_key(self, item: str) -> str:
        value = self._number(item)
        return self._text(item) if value is None else format_number(value)

    def _same_item(self, answer: str, gold: str, depth: int) -> bool:
        right = self._number(gold)
        if right is not None:
            return self._equal_to_number(answer, right)
        if self._text(answer) == self._text(gold):
            return True
        if gold[:1] in ("(", "[", "{"):  # a pair, or a list in a list
            return self._equal_items(answer, gold, ordered=gold[0] != "{", depth=depth + 1)
        return looks_like_latex(gold) and equal_latex(answer, gold, number=False)

    def readable(self, gold: str) -> bool:
        """Whether a gold answer is of the configured kind.

        Args:
            gold: the gold answer.
        """
        match self.config.kind:
            case "number":
                return self._number(gold) is not None or (is_constant(gold) and canonical(gold) != "")
            case "choice":
                return read_choice(gold, self.config.choices) is not None
            case "set" | "list":
                return split_items(gold) is not None
            case "text":
                return bool(self._text(gold))
            case "latex":
                return bool(canonical(gold)) and canonical(gold).casefold() not in _NOTHING
            case _:
                return self.look(gold) != "nothing"

    def normalise(self, answer: str) -> str:
        """One text for all ways of writing the same answer, as far as that can be told from the text alone.

        Args:
            answer: an answer.

        Returns:
            For a number its exact value ("1250", "3/4"); else the text as it is compared. The same again when applied
            again.
        """
        if self._numeric:
            value = self._number(answer)
            if value is not None:
                return format_number(value)
        if self.config.kind == "choice":
            letter = read_choice(answer, self.config.choices)
            if letter:
                return letter
        text = self._text(answer)
        # "12:" is no number and must not become one.
        return answer.strip() if self._numeric and self._number(text) is not None else text


@lru_cache(maxsize=65536)
def _cached_number(gold: str, percent: Literal["drop", "fraction", "refuse"]) -> Number | None:
    return read_number(gold, percent)


def _gold_number(gold: str, percent: Literal["drop", "fraction", "refuse"]) -> Number | None:
    return _cached_number(gold, percent) if len(gold) <= 64 else read_number(gold, percent)


def _as_latex(value: Number) -> str:
    if isinstance(value, int):
        return str(value)
    sign = "-" if value < 0 else ""
    return rf"{sign}\frac{{{abs(value.numerator)}}}{{{value.denominator}}}"

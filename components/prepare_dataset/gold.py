"""How a gold answer is read out of a dataset's answer column: one function for each preset of `data.gold`.

Called by `scan`. This is about how data sets are written, not about how a model answers: whether a gold answer is one
that a completion can be compared with is the contract's to say (`Contract.gold_is_readable`). The presets find nothing
rather than guess.
"""

import re
from collections.abc import Callable

from components.prepare_dataset.config import GoldConfig

Extract = Callable[[str], tuple[str | None, str | None]]
"""From the answer column's text to (gold answer, worked solution); None where there is none."""

_CALCULATOR = re.compile(r"<<[^<>]*>>")
_BOXED = re.compile(r"\\boxed\s*\{")


def make_extract(config: GoldConfig) -> Extract:
    """The extraction function of a preset.

    Args:
        config: the preset and, for `regex`, its pattern.
    """
    if config.preset == "gsm8k":
        return _gsm8k
    if config.preset == "boxed":
        return _boxed
    if config.pattern is not None:
        return _by_pattern(re.compile(config.pattern))
    return _plain


def describe_rule(config: GoldConfig) -> str:
    """What a preset looks for, for the message about a row in which it found nothing."""
    return {
        "plain": "text",
        "gsm8k": "an answer after '####'",
        "boxed": r"an answer in \boxed{...}",
        "regex": f"a match of {config.pattern!r}",
    }[config.preset]


def _plain(text: str) -> tuple[str | None, str | None]:
    return text.strip() or None, None


def _gsm8k(text: str) -> tuple[str | None, str | None]:
    solution, mark, gold = text.rpartition("####")
    if not mark:
        return None, None
    return gold.strip() or None, _CALCULATOR.sub("", solution).strip() or None


def _boxed(text: str) -> tuple[str | None, str | None]:
    last = None
    for match in _BOXED.finditer(text):
        last = match
    if last is None:
        return None, None
    depth = 1
    for position in range(last.end(), len(text)):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if depth == 0:
            return text[last.end() : position].strip() or None, text.strip()
    return None, None


def _by_pattern(pattern: re.Pattern[str]) -> Extract:
    def extract(text: str) -> tuple[str | None, str | None]:
        last = None
        for match in pattern.finditer(text):
            last = match
        if last is None or last.group(1) is None:
            return None, None
        return last.group(1).strip() or None, text[: last.start()].strip() or None

    return extract

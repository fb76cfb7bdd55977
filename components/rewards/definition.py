"""What a reward of the library declares about itself, and the registry of all of them.

`components.rewards.library` fills the registry; `config.py` checks names and options against it, `build.py` turns an
entry into a function, `reference.py` prints the table. Nothing here or in the library's modules imports more than
pydantic and the standard library at the top, so that a config is checked in milliseconds.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from components.sections import Section

if TYPE_CHECKING:
    from components.contract import Contract

Scorer = Callable[..., float | None]
"""Scores one completion: `scorer(text, *columns)`, columns as the definition orders them; None: not applicable."""


class Aspect(StrEnum):
    """What a reward judges. The smoke test holds each reward to the traps of its aspect."""

    FORMAT = "format"
    VALUE = "value"
    LENGTH = "length"
    STYLE = "style"


class NoOptions(Section):
    """For rewards without settings."""


@dataclass(frozen=True)
class Definition:
    """One reward of the library.

    Attributes:
        name: what a config calls it.
        aspect: what it judges.
        description: one line, as in the reference table.
        low: smallest value it returns.
        high: largest value it returns.
        weight: weight when the config gives none.
        columns: dataset columns it reads, in the order its scorer takes them.
        optional: those of them it can do without.
        concurrent: whether it mostly waits for other processes, and is better run on several completions at once.
        options: its settings.
        build: makes the scorer from the contract and the options; called once a process.
    """

    name: str
    aspect: Aspect
    description: str
    low: float
    high: float
    weight: float
    columns: tuple[str, ...]
    optional: tuple[str, ...]
    concurrent: bool
    options: type[Section]
    build: Callable[["Contract", Any], Scorer]


LIBRARY: dict[str, Definition] = {}


def library_entry(
    *,
    aspect: Aspect,
    low: float = 0.0,
    high: float = 1.0,
    weight: float,
    columns: tuple[str, ...] = (),
    optional: tuple[str, ...] = (),
    concurrent: bool = False,
    options: type[Section] = NoOptions,
) -> Callable[[Callable[["Contract", Any], Scorer]], Callable[["Contract", Any], Scorer]]:
    """Enter a scorer's factory into the library under its function name; its docstring's first line describes it.

    Args:
        aspect: what the reward judges.
        low: smallest value it returns.
        high: largest value it returns.
        weight: default weight.
        columns: dataset columns it reads besides the completion.
        optional: dataset columns it reads when they are there, after the others.
        concurrent: whether it mostly waits for other processes.
        options: its settings section.

    Returns:
        The decorator; it returns the factory unchanged.
    """

    def enter(build: Callable[["Contract", Any], Scorer]) -> Callable[["Contract", Any], Scorer]:
        name = build.__name__
        description = (build.__doc__ or "").strip().split("\n", 1)[0].rstrip(".")
        LIBRARY[name] = Definition(
            name, aspect, description, low, high, weight, (*columns, *optional), optional, concurrent, options, build
        )
        return build

    return enter

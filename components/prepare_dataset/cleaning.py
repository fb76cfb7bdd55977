"""One source's raw rows to clean ones: column mapping, gold extraction, and the count of what is wrong with the rest.

Called by `scan` for every batch. A row is broken when it cannot be read, lacks question or answer, holds something
other than text (whole and decimal numbers are taken as text), or has a gold answer that no completion could equal; one
wrong row never stops the count of the others. Text is stripped at both ends and otherwise left as it is.
"""

import math
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from typing import Any

from components.contract import Contract
from components.errors import BadInputError
from components.prepare_dataset.config import ColumnsConfig, GoldConfig
from components.prepare_dataset.gold import describe_rule, make_extract
from components.prepare_dataset.readers import RawBatch

FIRST_SHOWN = 5
"""Offending rows kept for a message or a report, of each kind."""

KEPT_PREFIX = "kept."
"""Before the names of kept columns, so that they clash with none of ours."""

CLEAN_FIELDS = ("id", "question", "answer", "solution", "where")
_EXCERPT = 80


@dataclass(frozen=True)
class Offence:
    """One row that something is wrong with.

    Attributes:
        where: `file:line`.
        field: config's or column's name of what is wrong; `row` for the whole.
        value: its beginning.
        reason: in words.
    """

    where: str
    field: str
    value: str
    reason: str

    def __str__(self) -> str:
        shown = f" ({self.value!r})" if self.value else ""
        return f"{self.where}: {self.field} {self.reason}{shown}"


@dataclass
class Tally:
    """What was read and what was broken.

    Attributes:
        rows: rows read, broken ones included.
        broken: count of broken rows by kind.
        first: the first of each kind.
    """

    rows: int = 0
    broken: dict[str, int] = field(default_factory=dict)
    first: list[Offence] = field(default_factory=list)

    def add(self, kind: str, offence: Offence) -> None:
        """Count one broken row."""
        self.broken[kind] = self.broken.get(kind, 0) + 1
        if self.broken[kind] <= FIRST_SHOWN:
            self.first.append(offence)

    def refuse(self, name: str, allowed: float) -> None:
        """Raise when more rows are broken than the config allows.

        Args:
            name: the split the source feeds.
            allowed: share of the rows, 0 to 1.

        Raises:
            BadInputError: with the counts, the first rows and the mend.
        """
        count = sum(self.broken.values())
        if self.rows == 0 or count <= allowed * self.rows:
            return
        kinds = ", ".join(f"{number} {kind}" for kind, number in self.broken.items())
        shown = "; ".join(str(offence) for offence in self.first[:3])
        least = math.ceil(count / self.rows * 1000) / 1000
        raise BadInputError(
            f"data.{name}: {count} of {self.rows} rows are broken ({kinds}). {shown}. Mend them, or drop such rows "
            f"with data.max_broken_share: {min(1.0, least):g}"
        )


@dataclass(frozen=True)
class ScanRules:
    """What holds for one source.

    Attributes:
        name: the split it feeds.
        columns: its column names.
        gold: its gold preset.
        limit: rows to read at most; None for all.
        batch_rows: rows at once.
        max_broken_share: share of broken rows that is dropped rather than refused.
    """

    name: str
    columns: ColumnsConfig
    gold: GoldConfig
    limit: int | None
    batch_rows: int
    max_broken_share: float


def row_id(question: str, answer: str) -> str:
    """32 hex digits that name a row by its content.

    Args:
        question: the task's text.
        answer: the gold answer.
    """
    return blake2b(f"{len(question)}:{question}{answer}".encode(), digest_size=16).hexdigest()


class Cleaner:
    """Turns raw batches into columns of clean rows, and counts what it leaves out."""

    def __init__(self, rules: ScanRules, contract: Contract):
        """Begin a source.

        Args:
            rules: its columns and gold preset.
            contract: says whether a gold answer is readable.
        """
        self.tally = Tally()
        self._columns = rules.columns
        self._rule = describe_rule(rules.gold)
        self._extract = make_extract(rules.gold)
        self._readable = lru_cache(maxsize=8192)(contract.gold_is_readable)

    def clean(self, raw: RawBatch) -> dict[str, list[Any]]:
        """The clean rows of a batch.

        Args:
            raw: rows as read.

        Returns:
            Columns of equal length: `CLEAN_FIELDS`, and the kept ones under their prefix.
        """
        names = self._columns
        tally = self.tally
        tally.rows += len(raw.numbers) + len(raw.unreadable)
        for row in raw.unreadable:
            tally.add("unreadable", Offence(f"{raw.file}:{row.number}", "row", row.excerpt, row.reason))
        columns = [raw.columns[names.question], raw.columns[names.answer]]
        columns.append(raw.columns[names.solution] if names.solution else [None] * len(raw.numbers))
        kept = [raw.columns[name] for name in names.keep]
        out: dict[str, list[Any]] = {name: [] for name in (*CLEAN_FIELDS, *(KEPT_PREFIX + k for k in names.keep))}
        for index, (number, question, answer, solution) in enumerate(zip(raw.numbers, *columns, strict=True)):
            where = f"{raw.file}:{number}"
            text, fault = _as_text(question)
            if fault is None and not text:
                fault = "is empty"
            if fault is not None:
                tally.add(_kind_of(fault, "question"), Offence(where, names.question, _shown(question), fault))
                continue
            written, fault = _as_text(answer)
            gold, found = (None, None) if fault is not None or not written else self._extract(written)
            if fault is None and not written:
                fault = "is empty"
            if fault is None and not gold:
                fault = f"has no gold answer: {self._rule} was looked for"
            if fault is None and gold is not None and not self._readable(gold):
                fault = f"has a gold answer no completion could equal: {gold[:_EXCERPT]!r}"
            if fault is not None or gold is None:
                fault = fault or "has no gold answer"
                tally.add(_kind_of(fault, "answer"), Offence(where, names.answer, _shown(answer), fault))
                continue
            if names.solution:
                found, fault = _as_text(solution) if solution is not None else (None, None)
                if fault is not None:
                    tally.add(_kind_of(fault, "solution"), Offence(where, names.solution, _shown(solution), fault))
                    continue
            out["id"].append(row_id(text, gold))
            out["question"].append(text)
            out["answer"].append(gold)
            out["solution"].append(found or None)
            out["where"].append(where)
            for name, values in zip(names.keep, kept, strict=True):
                out[KEPT_PREFIX + name].append(values[index])
        return out


def _as_text(value: Any) -> tuple[str, str | None]:
    """(stripped text, None), or ("", what is wrong)."""
    if isinstance(value, str):
        text = value.strip()
        if not text.isascii():
            try:
                text.encode("utf-8")
            except UnicodeEncodeError:
                return "", "is not valid text (undecodable bytes)"
        return text, None
    if value is None:
        return "", "is missing"
    if isinstance(value, bool):
        return "", "is true or false, not text"
    if isinstance(value, int):
        return str(value), None
    if isinstance(value, float):
        if not math.isfinite(value):
            return "", "is not a finite number"
        return (str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)), None
    return "", f"is {type(value).__name__}, not text"


def _kind_of(fault: str, name: str) -> str:
    if fault == "is missing":
        return f"without {name}"
    if fault == "is empty":
        return f"with empty {name}"
    if fault.startswith("has no gold"):
        return "without gold answer"
    if fault.startswith("has a gold"):
        return "with unreadable gold answer"
    return f"with {name} that is no text"


def _shown(value: Any) -> str:
    text = "" if value is None else str(value)
    text = text.encode("utf-8", errors="replace").decode()
    return text if len(text) <= _EXCERPT else "..." + text[-_EXCERPT:]

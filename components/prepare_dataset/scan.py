"""The first pass over a source: read, map columns, extract gold, check, tokenise, and keep a few bytes a row.

Called by `prepare_dataset`, once for each given source. Clean rows go to a scratch file on disk (LZ4 Arrow stream), in
order; memory keeps 20 bytes of each for the decisions that need all rows at once: the key of its question, that of its
answer, and its length in tokens. Refuses a source without rows, and one with more broken rows than the config allows,
naming file and line of the first.
"""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from components.contract import Contract
from components.errors import BadInputError
from components.prepare_dataset.config import ColumnsConfig, GoldConfig
from components.prepare_dataset.gold import describe_rule, make_extract
from components.prepare_dataset.overlap import text_key
from components.prepare_dataset.prompts import PromptBuilder
from components.prepare_dataset.readers import RawBatch, estimate_rows, read_batches
from components.prepare_dataset.sources import SourceFiles
from components.steps import report_progress

FIRST_SHOWN = 5
"""Offending rows kept for a message or a report, of each kind."""

_SCRATCH_FIELDS = ("id", "question", "answer", "solution", "where")
KEPT_PREFIX = "kept."
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


@dataclass(frozen=True)
class ScannedSource:
    """What the first pass knows of a source.

    Attributes:
        name: the split it feeds: train, validation or holdout.
        files: where its rows came from.
        scratch: Arrow stream of the clean rows, in order.
        question_keys: uint64 of each clean row, equal for equal questions (see `overlap`).
        answer_keys: uint64 of each clean row, equal for equal gold answers.
        tokens: int32 of each clean row, length of its prompt.
        rows_read: rows of the source, broken ones included.
        broken: count of broken rows by what is wrong with them.
        first_broken: the first of them.
        special: rows whose question contains a special token of the tokenizer.
        kept_types: Arrow type of each kept column.
    """

    name: str
    files: SourceFiles
    scratch: Path
    question_keys: np.ndarray
    answer_keys: np.ndarray
    tokens: np.ndarray
    rows_read: int
    broken: dict[str, int]
    first_broken: tuple[Offence, ...]
    special: int
    kept_types: dict[str, pa.DataType]

    def __len__(self) -> int:
        """Number of clean rows."""
        return len(self.tokens)

    def batches(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The clean rows again, as (number of the first one, batch with id, question, answer, solution, where, kept)."""
        start = 0
        with pa.OSFile(str(self.scratch)) as file, pa.ipc.open_stream(file) as stream:
            for batch in stream:
                yield start, batch
                start += batch.num_rows


@dataclass
class _Tally:
    rows: int = 0
    broken: dict[str, int] = field(default_factory=dict)
    first: list[Offence] = field(default_factory=list)
    special: int = 0

    def add(self, kind: str, offence: Offence) -> None:
        self.broken[kind] = self.broken.get(kind, 0) + 1
        if self.broken[kind] <= FIRST_SHOWN:
            self.first.append(offence)

    def refuse(self, name: str, allowed: float) -> None:
        """Raise when more rows are broken than the config allows."""
        count = sum(self.broken.values())
        if self.rows == 0 or count <= allowed * self.rows:
            return
        kinds = ", ".join(f"{number} {kind}" for kind, number in self.broken.items())
        shown = "; ".join(str(offence) for offence in self.first[:3])
        least = math.ceil(count / self.rows * 1000) / 1000
        raise BadInputError(
            f"data.{name}: {count} of {self.rows} rows are broken ({kinds}). {shown}. Mend them, or drop such rows with "
            f"data.max_broken_share: {min(1.0, least):g}"
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


def scan_source(
    files: SourceFiles, rules: ScanRules, contract: Contract, prompts: PromptBuilder, work: Path
) -> ScannedSource:
    """Read a source once.

    Args:
        files: its files.
        rules: columns, gold preset and limits that hold for it.
        contract: says whether a gold answer is readable.
        prompts: counts tokens.
        work: folder for the scratch file.

    Raises:
        BadInputError: no rows, a missing column, an unreadable file, or too many broken rows.
    """
    cleaner = _Cleaner(rules, contract)
    kept = rules.columns.keep
    schema = pa.schema([(name, pa.string()) for name in (*_SCRATCH_FIELDS, *(KEPT_PREFIX + name for name in kept))])
    scratch = work / f"{rules.name}.arrow"
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    question_keys, answer_keys, tokens = [], [], []
    kept_types: dict[str, pa.DataType] = dict.fromkeys(kept, pa.null())
    expected = sum(estimate_rows(path) for path, _ in files.files)
    if rules.limit is not None:
        expected = min(expected, rules.limit)
    with pa.OSFile(str(scratch), "wb") as out, pa.ipc.new_stream(out, schema, options=options) as writer:
        for raw in _limited(_all_batches(files, rules), rules.limit):
            clean = cleaner.clean(raw)
            for name in kept:
                kept_types[name] = _widen(kept_types[name], clean[KEPT_PREFIX + name], name, raw)
                clean[KEPT_PREFIX + name] = [_kept_text(value) for value in clean[KEPT_PREFIX + name]]
            tokens.append(prompts.count_tokens(clean["question"]))
            question_keys.append(_as_numbers([text_key(text) for text in clean["question"]]))
            answer_keys.append(_as_numbers([text_key(text) for text in clean["answer"]]))
            cleaner.tally.special += sum(map(prompts.holds_special, clean["question"]))
            writer.write_batch(pa.record_batch([pa.array(clean[name], pa.string()) for name in schema.names], schema))
            report_progress(
                "prepare_dataset", cleaner.tally.rows, max(cleaner.tally.rows, expected), unit=f"{rules.name} row"
            )
    tally = cleaner.tally
    if tally.rows == 0:
        raise BadInputError(f"data.{rules.name}: {files.shown} has no rows; give a source with at least one")
    tally.refuse(rules.name, rules.max_broken_share)
    return ScannedSource(
        name=rules.name,
        files=files,
        scratch=scratch,
        question_keys=_joined(question_keys, np.uint64),
        answer_keys=_joined(answer_keys, np.uint64),
        tokens=_joined(tokens, np.int32),
        rows_read=tally.rows,
        broken=tally.broken,
        first_broken=tuple(tally.first),
        special=tally.special,
        kept_types={name: pa.string() if pa.types.is_null(kind) else kind for name, kind in kept_types.items()},
    )


def row_id(question: str, answer: str) -> str:
    """32 hex digits that name a row by its content.

    Args:
        question: the task's text.
        answer: the gold answer.
    """
    return blake2b(f"{len(question)}:{question}{answer}".encode(), digest_size=16).hexdigest()


class _Cleaner:
    """Turns raw batches into columns of clean rows, and counts what it leaves out."""

    def __init__(self, rules: ScanRules, contract: Contract):
        self.tally = _Tally()
        self._columns = rules.columns
        self._rule = describe_rule(rules.gold)
        self._extract = make_extract(rules.gold)
        self._readable = lru_cache(maxsize=65536)(contract.gold_is_readable)

    def clean(self, raw: RawBatch) -> dict[str, list[Any]]:
        names = self._columns
        tally = self.tally
        tally.rows += len(raw.numbers) + len(raw.unreadable)
        for row in raw.unreadable:
            tally.add("unreadable", Offence(f"{raw.file}:{row.number}", "row", row.excerpt, row.reason))
        columns = [raw.columns[names.question], raw.columns[names.answer]]
        columns.append(raw.columns[names.solution] if names.solution else [None] * len(raw.numbers))
        kept = [raw.columns[name] for name in names.keep]
        out: dict[str, list[Any]] = {name: [] for name in (*_SCRATCH_FIELDS, *(KEPT_PREFIX + k for k in names.keep))}
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


def _all_batches(files: SourceFiles, rules: ScanRules) -> Iterator[RawBatch]:
    columns = rules.columns
    wanted = list(
        dict.fromkeys(
            [columns.question, columns.answer, *([columns.solution] if columns.solution else []), *columns.keep]
        )
    )
    rows = rules.batch_rows if rules.limit is None else min(rules.batch_rows, rules.limit)
    for path, shown in files.files:
        yield from read_batches(path, shown, wanted, rows, f"data.columns of {rules.name}")


def _limited(batches: Iterator[RawBatch], limit: int | None) -> Iterator[RawBatch]:
    left = limit
    for raw in batches:
        if left is None:
            yield raw
            continue
        # Rows of a batch in the order of the file, good and bad alike, up to the limit.
        numbers = sorted([*raw.numbers, *(row.number for row in raw.unreadable)])[:left]
        last = numbers[-1] if numbers else 0
        good = sum(number <= last for number in raw.numbers)
        yield RawBatch(
            raw.file,
            raw.numbers[:good],
            {name: values[:good] for name, values in raw.columns.items()},
            [row for row in raw.unreadable if row.number <= last],
        )
        left -= len(numbers)
        if left <= 0:
            return


def _as_numbers(digests: list[bytes]) -> np.ndarray:
    return np.frombuffer(b"".join(digests), dtype="<u8")


def _joined(parts: list[np.ndarray], kind: type) -> np.ndarray:
    joined = np.concatenate(parts) if parts else np.zeros(0, dtype=kind)
    parts.clear()
    return joined


def _kept_text(value: Any) -> str:
    return json.dumps(value, default=str, ensure_ascii=True)


def _widen(known: pa.DataType, values: list[Any], name: str, raw: RawBatch) -> pa.DataType:
    """The Arrow type that holds a kept column's values so far and these."""
    try:
        plain = [json.loads(_kept_text(value)) for value in values]
        kind = pa.array(plain).type
        return (
            pa.unify_schemas([pa.schema([(name, known)]), pa.schema([(name, kind)])], promote_options="permissive")
            .field(0)
            .type
        )
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        place = f"{raw.file}:{raw.numbers[0]}" if raw.numbers else raw.file
        raise BadInputError(
            f"column {name!r} (data.columns.keep) has values of types that do not go together, from {place} on: {error}; "
            "make them one type"
        ) from error

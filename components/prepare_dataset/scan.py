"""The first pass over a source: read, map columns, extract gold, check, tokenise, and keep a few bytes a row.

Called by `prepare_dataset`, once for each given source. Clean rows go to a scratch file on disk (LZ4 Arrow stream), in
order; memory keeps 24 bytes of each for the decisions that need all rows at once: keys of its question, its numbers and
its answer, and its length in tokens. Refuses a source without rows, and one with more broken rows than the config
allows, naming file and line of the first.
"""

import json
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from components.contract import Contract
from components.errors import BadInputError
from components.prepare_dataset.cleaning import CLEAN_FIELDS, KEPT_PREFIX, Cleaner, Offence, ScanRules
from components.prepare_dataset.keys import Column
from components.prepare_dataset.overlap import numbers_key, text_key, tokens_of
from components.prepare_dataset.prompts import PromptBuilder
from components.prepare_dataset.readers import RawBatch, estimate_rows, read_batches
from components.prepare_dataset.sources import SourceFiles
from components.steps import report_progress


@dataclass(frozen=True)
class ScannedSource:
    """What the first pass knows of a source.

    Attributes:
        name: the split it feeds: train, validation or holdout.
        files: where its rows came from.
        scratch: Arrow stream of the clean rows, in order.
        question_keys: uint64 of each clean row, equal for equal questions (see `overlap`).
        numbers_keys: uint32 of each clean row, equal for questions with the same numbers (and for one pair in 10^9).
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
    numbers_keys: np.ndarray
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
        """The clean rows again: number of the first one, and a batch of `CLEAN_FIELDS` and kept columns as JSON."""
        start = 0
        with pa.OSFile(str(self.scratch)) as file, pa.ipc.open_stream(file) as stream:
            for batch in stream:
                yield start, batch
                start += batch.num_rows


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
    cleaner = Cleaner(rules, contract)
    kept = rules.columns.keep
    schema = pa.schema([(name, pa.string()) for name in (*CLEAN_FIELDS, *(KEPT_PREFIX + name for name in kept))])
    scratch = work / f"{rules.name}.arrow"
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    question_keys, numbers_keys, answer_keys, tokens = Column("Q"), Column("I"), Column("Q"), Column("i")
    kept_types: dict[str, pa.DataType] = dict.fromkeys(kept, pa.null())
    expected = sum(estimate_rows(path) for path, _ in files.files)
    if rules.limit is not None:
        expected = min(expected, rules.limit)
    special = 0
    # Tokenising leaves Python free, so one batch is tokenised while the next is read.
    with (
        ThreadPoolExecutor(1) as tokeniser,
        pa.OSFile(str(scratch), "wb") as out,
        pa.ipc.new_stream(out, schema, options=options) as writer,
    ):
        counting: Future[np.ndarray] | None = None
        for raw in _limited(_all_batches(files, rules), rules.limit):
            clean = cleaner.clean(raw)
            if counting is not None:
                tokens.extend(counting.result().tobytes())
            counting = tokeniser.submit(prompts.count_tokens, clean["question"])
            for name in kept:
                kept_types[name] = _widen(kept_types[name], clean[KEPT_PREFIX + name], name, raw)
                clean[KEPT_PREFIX + name] = [_kept_text(value) for value in clean[KEPT_PREFIX + name]]
            words = [tokens_of(text) for text in clean["question"]]
            question_keys.extend(b"".join([text_key(own) for own in words]))
            numbers_keys.extend(b"".join([numbers_key(own) for own in words]))
            answer_keys.extend(b"".join([text_key(tokens_of(text)) for text in clean["answer"]]))
            special += sum(map(prompts.holds_special, clean["question"]))
            writer.write_batch(pa.record_batch([pa.array(clean[name], pa.string()) for name in schema.names], schema))
            done = cleaner.tally.rows
            report_progress("prepare_dataset", done, max(done, expected), unit=f"{rules.name} row")
        if counting is not None:
            tokens.extend(counting.result().tobytes())
    tally = cleaner.tally
    if tally.rows == 0:
        raise BadInputError(f"data.{rules.name}: {files.shown} has no rows; give a source with at least one")
    tally.refuse(rules.name, rules.max_broken_share)
    return ScannedSource(
        name=rules.name,
        files=files,
        scratch=scratch,
        question_keys=question_keys.finish(),
        numbers_keys=numbers_keys.finish(),
        answer_keys=answer_keys.finish(),
        tokens=tokens.finish(),
        rows_read=tally.rows,
        broken=tally.broken,
        first_broken=tuple(tally.first),
        special=special,
        kept_types={name: pa.string() if pa.types.is_null(kind) else kind for name, kind in kept_types.items()},
    )


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
            f"column {name!r} (data.columns.keep) has values of types that do not go together, from {place} on: "
            f"{error}; make them one type"
        ) from error

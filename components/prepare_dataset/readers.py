"""Files of rows, read in batches: JSONL, CSV, TSV and Parquet, with the line or row number of everything.

Called by `scan`. Memory holds one batch. A row that cannot be read is handed on as a fault beside the good ones, so
that all of them can be counted; a file that cannot be read, or lacks a column the config names, is refused at once.
Limits: text is UTF-8; JSON is one object a line; CSV has a header; of Parquet only flat columns can be questions.
"""

import csv
import difflib
import gzip
import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from components.errors import BadInputError

TEXT_FORMATS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".csv": "csv", ".tsv": "tsv"}
_FIELD_LIMIT = 64 * 1024 * 1024


@dataclass(frozen=True)
class UnreadableRow:
    """A row that is not one: its line, and why."""

    number: int
    reason: str
    excerpt: str


@dataclass(frozen=True)
class RawBatch:
    """Some rows of one file.

    Attributes:
        file: the file's name as a person knows it.
        numbers: line (text formats) or row (Parquet) number of each row, from 1.
        columns: values of the wanted columns by name, each as long as `numbers`; None where a row lacks it.
        unreadable: rows of the same stretch that could not be read.
    """

    file: str
    numbers: list[int]
    columns: dict[str, list[Any]]
    unreadable: list[UnreadableRow] = field(default_factory=list)


def file_format(path: Path) -> str | None:
    """`jsonl`, `csv`, `tsv` or `parquet` by the file's name (.gz allowed on text); None when it is none of them."""
    name = path.name.lower()
    if name.endswith(".parquet"):
        return "parquet"
    stem = name.removesuffix(".gz")
    return next((kind for suffix, kind in TEXT_FORMATS.items() if stem.endswith(suffix)), None)


def estimate_rows(path: Path) -> int:
    """About how many rows a file has: exact for Parquet, the number of lines for text."""
    if file_format(path) == "parquet":
        return int(_open_parquet(path, path.name).metadata.num_rows)
    with _open_binary(path) as file:
        return sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(1 << 20), b"")) + 1


def read_batches(path: Path, shown: str, wanted: Sequence[str], rows: int, where: str) -> Iterator[RawBatch]:
    """Read one file.

    Args:
        path: the file.
        shown: its name in messages.
        wanted: column names to read; every one must be in the file.
        rows: rows of a batch at most.
        where: config path of the columns' section (`data.columns`), for messages.

    Raises:
        BadInputError: when the file cannot be read, has another format, or lacks a wanted column.
    """
    kind = file_format(path)
    if kind == "parquet":
        return _read_parquet(path, shown, wanted, rows, where)
    if kind == "jsonl":
        return _read_jsonl(path, shown, wanted, rows, where)
    if kind in ("csv", "tsv"):
        return _read_csv(path, shown, wanted, rows, where, "," if kind == "csv" else "\t")
    raise BadInputError(f"{shown} is no .jsonl, .csv, .tsv or .parquet file; convert it, or rename it to what it is")


def _open_binary(path: Path) -> IO[bytes]:
    return gzip.open(path, "rb") if path.name.lower().endswith(".gz") else path.open("rb")  # type: ignore[return-value]


def _require_columns(shown: str, wanted: Sequence[str], available: Sequence[str], where: str) -> None:
    missing = [name for name in wanted if name not in available]
    if not missing:
        return
    near = difflib.get_close_matches(missing[0], available, n=1, cutoff=0.5)
    mend = f"did you mean {near[0]!r}?" if near else f"name the right one in {where}"
    has = ", ".join(available[:12]) + (", ..." if len(available) > 12 else "")
    raise BadInputError(f"{shown} has no column {missing[0]!r} ({where}); it has: {has or 'none'}; {mend}")


# --- JSONL ---------------------------------------------------------------------------------------------------------


def _read_jsonl(path: Path, shown: str, wanted: Sequence[str], rows: int, where: str) -> Iterator[RawBatch]:
    with _open_binary(path) as file:
        lines = enumerate(_guarded(file, shown), start=1)
        first = True
        while chunk := list(islice(lines, rows)):
            if first and chunk[0][1].lstrip(b"\xef\xbb\xbf \t").startswith(b"["):
                raise BadInputError(
                    f"{shown} is one JSON array; write one object a line, for example: jq -c '.[]' {shown} > rows.jsonl"
                )
            numbers: list[int] = []
            objects: list[dict[str, Any]] = []
            unreadable: list[UnreadableRow] = []
            for number, line in chunk:
                if not line.strip():
                    continue
                try:
                    value = json.loads(line)
                except ValueError as error:
                    unreadable.append(UnreadableRow(number, _json_reason(error), _excerpt(line)))
                    continue
                if isinstance(value, dict):
                    numbers.append(number)
                    objects.append(value)
                else:
                    unreadable.append(UnreadableRow(number, "is not a JSON object", _excerpt(line)))
            if first and objects:
                _require_columns(shown, wanted, list(dict.fromkeys(key for row in objects for key in row)), where)
                first = False
            yield RawBatch(shown, numbers, {name: [row.get(name) for row in objects] for name in wanted}, unreadable)


def _guarded(file: IO[bytes], shown: str) -> Iterator[bytes]:
    try:
        yield from file
    except (OSError, EOFError, zlib.error) as error:
        raise BadInputError(f"{shown} cannot be read: {error}; check that the file is whole") from error


def _json_reason(error: ValueError) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"is not JSON ({error.msg} at column {error.colno})"
    return f"is not UTF-8 text ({error})"


def _excerpt(line: bytes) -> str:
    return line[:80].decode("utf-8", errors="replace").strip()


# --- CSV -----------------------------------------------------------------------------------------------------------


def _read_csv(
    path: Path, shown: str, wanted: Sequence[str], rows: int, where: str, delimiter: str
) -> Iterator[RawBatch]:
    csv.field_size_limit(_FIELD_LIMIT)
    with _open_binary(path) as binary:
        # Bytes that are not UTF-8 become lone surrogates, which `scan` reports with their row.
        text = (line.decode("utf-8", errors="surrogateescape") for line in _guarded(binary, shown))
        reader = csv.reader(_without_mark(text), delimiter=delimiter, strict=True)
        try:
            header = next(reader, None)
        except csv.Error as error:
            raise BadInputError(f"{shown}:1: the header is not CSV ({error}); quote its names properly") from error
        if not header:
            raise BadInputError(f"{shown} is empty; a CSV file starts with a line of column names")
        names = [name.strip() for name in header]
        _require_columns(shown, wanted, names, where)
        repeated = [name for name in wanted if names.count(name) > 1]
        if repeated:
            raise BadInputError(f"{shown}:1: column {repeated[0]!r} is named twice; rename one of them")
        places = {name: names.index(name) for name in wanted}
        records = _csv_records(reader, len(names))
        while chunk := list(islice(records, rows)):
            good = [(number, record) for number, record in chunk if isinstance(record, list)]
            yield RawBatch(
                shown,
                [number for number, _ in good],
                {name: [record[place] or None for _, record in good] for name, place in places.items()},
                [record for _, record in chunk if isinstance(record, UnreadableRow)],
            )


def _csv_records(reader: Any, fields: int) -> Iterator[tuple[int, list[str] | UnreadableRow]]:
    while True:
        number = reader.line_num + 1
        try:
            record = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            reason = f"is not CSV ({error})"
            if "unexpected end of data" in str(error):
                reason = "opens a quote that is never closed, so that the rest of the file is one field"
            yield number, UnreadableRow(number, reason, "")
            continue
        if not record:
            continue
        if len(record) != fields:
            reason = f"has {len(record)} fields, the header has {fields}"
            yield number, UnreadableRow(number, reason, ",".join(record)[:80])
        else:
            yield number, record


def _without_mark(lines: Iterator[str]) -> Iterator[str]:
    for line in islice(lines, 1):
        yield line.removeprefix("\ufeff")
    yield from lines


# --- Parquet -------------------------------------------------------------------------------------------------------


def _open_parquet(path: Path, shown: str) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(path, pre_buffer=False)
    except (pa.ArrowInvalid, OSError) as error:
        raise BadInputError(f"{shown} is not a readable Parquet file: {error}") from error


def _read_parquet(path: Path, shown: str, wanted: Sequence[str], rows: int, where: str) -> Iterator[RawBatch]:
    with _open_parquet(path, shown) as file:
        _require_columns(shown, wanted, file.schema_arrow.names, where)
        done = 0
        batches = file.iter_batches(batch_size=rows, columns=list(wanted))
        while True:
            try:
                batch = next(batches, None)
            except (pa.ArrowInvalid, OSError) as error:
                raise BadInputError(f"{shown} is damaged after row {done}: {error}") from error
            if batch is None:
                return
            numbers = list(range(done + 1, done + batch.num_rows + 1))
            yield RawBatch(shown, numbers, {name: batch.column(name).to_pylist() for name in wanted})
            done += batch.num_rows

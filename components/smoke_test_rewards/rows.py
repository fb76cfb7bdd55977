"""Which training rows the rewards are tried on, and reading them out of a prepared dataset.

`choose_rows` takes rows that differ in kind, so that a data set with one thousand small numbers and one large one still
shows what happens to the large one. `probe_rows` adds copies of a row with well-known gold answers. Used by the step on
`train.parquet` (validation and holdout are never read) and by `grpo rewards test` on raw rows.
"""

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from components.contract import Contract
from components.contract.number import read_number
from components.errors import BadInputError
from components.smoke_test_rewards.traps import Row, number_text

PROBE_GOLDS = ("1250", "18", "5")
"""Gold answers of the copied rows: with a thousands separator, a currency sign, zeros behind the point."""
_CANDIDATES = 5_000  # rows looked at when choosing those that differ in kind


def choose_rows(golds: Sequence[str], count: int, seed: int) -> list[int]:
    """Indices of rows that differ in kind, then in gold answer.

    Args:
        golds: gold answers of the candidates.
        count: rows wanted.
        seed: of the draw.

    Returns:
        At most `count` indices, each kind of answer in turn; rows with one and the same answer come last.
    """
    order = list(range(len(golds)))
    random.Random(seed).shuffle(order)  # noqa: S311 (a draw, not a secret)
    seen: set[str] = set()
    kinds: dict[tuple[object, ...], list[int]] = {}
    repeated: list[int] = []
    for index in order:
        if golds[index] in seen:
            repeated.append(index)
            continue
        seen.add(golds[index])
        kinds.setdefault(_kind(golds[index]), []).append(index)
    queues = list(kinds.values())
    chosen: list[int] = []
    while queues and len(chosen) < count:
        for queue in list(queues):
            chosen.append(queue.pop(0))
            if not queue:
                queues.remove(queue)
    return [*chosen, *repeated][:count]


def probe_rows(contract: Contract, rows: Sequence[Row], read_columns: Collection[str], gold_column: str) -> list[Row]:
    """Copies of the first row with well-known gold answers; none where that would be unfair.

    Args:
        contract: of the run.
        rows: the rows chosen from the data.
        read_columns: columns that the rewards ask for by name. A reward that reads more than the gold answer may
            rightly find the copies inconsistent.
        gold_column: name of the gold answer's column.

    Returns:
        No rows when answers are not numbers, or a reward reads other columns.
    """
    numbers = sum(read_number(row.gold) is not None for row in rows)
    if not rows or numbers < len(rows) or set(read_columns) - {gold_column} or not contract.equal("1,250", "1250"):
        return []
    first = rows[0]
    blank: Mapping[str, Any] = {name: None for name in ("solution",) if name in first.columns}
    return [
        replace(
            first,
            label=f"a copy of {first.label}",
            gold=gold,
            columns={**first.columns, **blank, gold_column: gold},
        )
        for gold in PROBE_GOLDS
        if all(gold != row.gold for row in rows)
    ]


def read_training_rows(dataset_directory: Path, count: int, seed: int) -> list[Row]:
    """Rows of a prepared dataset's training split that differ in kind.

    Args:
        dataset_directory: holds `train.parquet`.
        count: rows wanted.
        seed: of the draw.

    Raises:
        BadInputError: when there is no training split, or it has no rows.
    """
    golds = _answers(dataset_directory)
    order = list(range(len(golds)))
    random.Random(seed).shuffle(order)  # noqa: S311 (a draw, not a secret)
    candidates = order[:_CANDIDATES]
    chosen = choose_rows([golds[index] for index in candidates], count, seed)
    return _take(dataset_directory, [candidates[index] for index in chosen])


def draw_training_rows(dataset_directory: Path, count: int, seed: int) -> list[Row]:
    """Rows of the training split drawn evenly, as training meets them.

    Args:
        dataset_directory: holds `train.parquet`.
        count: rows wanted; fewer come back when there are fewer.
        seed: of the draw.

    Raises:
        BadInputError: when there is no training split, or it has no rows.
    """
    size = len(_answers(dataset_directory))
    return _take(dataset_directory, _draw(size, count, seed))


def draw_rows(rows: Sequence[Row], count: int, seed: int) -> list[Row]:
    """Some of these rows, drawn evenly.

    Args:
        rows: to draw from.
        count: rows wanted; fewer come back when there are fewer.
        seed: of the draw.
    """
    return [rows[index] for index in _draw(len(rows), count, seed)]


def make_row(label: str, columns: Mapping[str, Any]) -> Row:
    """A row from the columns of a prepared dataset (`prompt`, `answer` and whatever else there is)."""
    prompt = [{"role": str(message["role"]), "content": str(message["content"])} for message in columns["prompt"]]
    return Row(label=label, prompt=prompt, gold=str(columns["answer"]), columns=dict(columns))


def _draw(size: int, count: int, seed: int) -> list[int]:
    return random.Random(seed).sample(range(size), min(count, size))  # noqa: S311 (a draw, not a secret)


def _answers(dataset_directory: Path) -> list[str]:
    import pyarrow.parquet as pq

    path = dataset_directory / "train.parquet"
    if not path.is_file():
        raise BadInputError(f"{dataset_directory} holds no train.parquet; give the folder that prepare_dataset wrote")
    answers = [str(answer) for answer in pq.read_table(path, columns=["answer"]).column("answer").to_pylist()]
    if not answers:
        raise BadInputError(f"{path} has no rows; there is nothing to try the rewards on")
    return answers


def _take(dataset_directory: Path, indices: Sequence[int]) -> list[Row]:
    import pyarrow.dataset as ds

    table = ds.dataset(dataset_directory / "train.parquet").take(list(indices))
    return [
        make_row(f"training row {index + 1}", columns)
        for index, columns in zip(indices, table.to_pylist(), strict=True)
    ]


def _kind(gold: str) -> tuple[object, ...]:
    number = read_number(gold)
    if number is None:
        return "text", min(len(gold) // 20, 5), "," in gold
    value = Fraction(number)
    return value < 0, abs(value) >= 1000, value.denominator == 1, gold == number_text(value)

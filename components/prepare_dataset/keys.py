"""Arrays of one small number a row, and questions to them that need little memory beside the array itself.

Called by `scan`, `selection` and `writing`. NumPy's `unique`, `isin` and `percentile` answer the same and make several
copies of a million rows' worth on the way; these sort one copy in place or go through the rows in stretches.
"""

from array import array
from collections.abc import Callable, Iterator, Sequence

import numpy as np

_STRETCH = 65536


class Column:
    """Numbers that arrive in batches, kept as they are in memory (no list, no copy at the end)."""

    def __init__(self, kind: str):
        """Begin empty.

        Args:
            kind: `array` type code: Q (uint64), I (uint32), i (int32).
        """
        self._values = array(kind)

    def extend(self, content: bytes) -> None:
        """Add numbers, as their little-endian bytes."""
        self._values.frombytes(content)

    def finish(self) -> np.ndarray:
        """All of them, as a view."""
        return np.frombuffer(self._values, dtype=np.dtype(self._values.typecode))


def stretches(count: int) -> Iterator[slice]:
    """Slices that together cover `count` rows."""
    return (slice(start, min(start + _STRETCH, count)) for start in range(0, count, _STRETCH))


def is_in(values: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Which values are among the wanted ones.

    Args:
        values: one number a row.
        wanted: numbers to look for.

    Returns:
        bool, as long as `values`.
    """
    found = np.zeros(len(values), dtype=bool)
    if not len(wanted):
        return found
    ordered = np.unique(wanted)
    for rows in stretches(len(values)):
        places = np.minimum(np.searchsorted(ordered, values[rows]), len(ordered) - 1)
        found[rows] = ordered[places] == values[rows]
    return found


def repeats(count: int, key: Callable[[slice], np.ndarray]) -> np.ndarray:
    """Which rows have the key of an earlier one.

    Args:
        count: number of rows.
        key: the uint64 keys of a stretch of rows; asked twice for each.

    Returns:
        bool, one a row.
    """
    ordered = np.empty(count, dtype=np.uint64)
    for rows in stretches(count):
        ordered[rows] = key(rows)
    ordered.sort()
    repeated = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
    del ordered
    out = np.zeros(count, dtype=bool)
    if not len(repeated):
        return out
    seen: set[int] = set()
    for rows in stretches(count):
        keys = key(rows)
        for place in np.flatnonzero(is_in(keys, repeated)):
            value = int(keys[place])
            out[rows.start + place] = value in seen
            seen.add(value)
    return out


def count_values(values: np.ndarray, most: int) -> tuple[int, np.ndarray, np.ndarray]:
    """How often values occur.

    Args:
        values: numbers; they are sorted in place.
        most: how many of the most frequent ones to return.

    Returns:
        (number of distinct values, the most frequent ones, their counts), ties by value.
    """
    values.sort()
    starts = np.flatnonzero(np.concatenate(([True], values[1:] != values[:-1]))) if len(values) else np.zeros(0, int)
    counts = np.diff(starts, append=len(values))
    if len(counts) > most:
        least = np.partition(counts, len(counts) - most)[len(counts) - most]
        above = np.flatnonzero(counts > least)
        places = np.concatenate((above, np.flatnonzero(counts == least)[: most - len(above)]))
    else:
        places = np.arange(len(counts))
    places = places[np.argsort(-counts[places], kind="stable")]
    return len(counts), values[starts[places]], counts[places]


def largest_rows(values: np.ndarray, keep: np.ndarray, most: int) -> list[int]:
    """Rows with the largest values among those kept, at most `most`, the first of equals."""
    kept = values[keep]
    if len(kept) <= most:
        return [int(row) for row in np.flatnonzero(keep)]
    least = np.partition(kept, len(kept) - most)[len(kept) - most]
    above = np.flatnonzero(keep & (values > least))
    return [int(row) for row in (*above, *np.flatnonzero(keep & (values == least))[: most - len(above)])]


def percentiles(values: np.ndarray, points: Sequence[int]) -> list[int]:
    """Values at percentiles, the next higher one where a percentile falls between two.

    Args:
        values: non-negative integers, at least one.
        points: percentiles, 0 to 100.
    """
    reached = np.cumsum(np.bincount(values))
    ranks = [-(-point * (len(values) - 1) // 100) for point in points]
    return [int(np.searchsorted(reached, rank + 1)) for rank in ranks]

"""Frugal counterparts of NumPy's functions answer as those do."""

import numpy as np
import pytest

from components.prepare_dataset import keys


@pytest.fixture(autouse=True)
def short_stretches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "_STRETCH", 7)


@pytest.mark.parametrize("count", [0, 1, 6, 7, 8, 100])
@pytest.mark.parametrize("distinct", [1, 5, 10**9])
def test_they_agree_with_numpy(count: int, distinct: int) -> None:
    draw = np.random.default_rng(count + distinct)
    values = draw.integers(0, distinct, count).astype(np.uint64)
    wanted = draw.integers(0, distinct, 5).astype(np.uint64)
    assert (keys.is_in(values, wanted) == np.isin(values, wanted)).all()
    assert not keys.is_in(values, wanted[:0]).any()

    firsts = np.unique(values, return_index=True)[1]
    expected = np.ones(count, dtype=bool)
    expected[firsts] = False
    assert (keys.repeats(count, lambda rows: values[rows]) == expected).all()

    found, counts = np.unique(values, return_counts=True)
    order = np.argsort(-counts, kind="stable")[:3]
    number, top, often = keys.count_values(values.copy(), 3)
    assert number == len(found)
    assert top.tolist() == found[order].tolist()
    assert often.tolist() == counts[order].tolist()

    keep = draw.random(count) < 0.7
    small = (values % np.uint64(50)).astype(np.int32)
    rows = np.flatnonzero(keep)
    expected_rows = sorted(rows[np.argsort(-small[rows], kind="stable")[:4]].tolist())
    assert sorted(keys.largest_rows(small, keep, 4)) == expected_rows

    if count:
        points = (0, 50, 90, 99, 100)
        assert keys.percentiles(small, points) == np.percentile(small, points, method="higher").tolist()


def test_a_column_holds_what_was_added() -> None:
    column = keys.Column("Q")
    column.extend(np.array([1, 2**63], dtype="<u8").tobytes())
    column.extend(b"")
    column.extend(np.array([3], dtype="<u8").tobytes())
    assert column.finish().tolist() == [1, 2**63, 3]
    assert keys.Column("i").finish().tolist() == []

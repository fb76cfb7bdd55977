"""Files in batches, with the numbers of their rows, and what is wrong with them."""

import gzip
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from components.errors import BadInputError
from components.prepare_dataset.readers import RawBatch, estimate_rows, read_batches

WANTED = ("question", "answer")


def read(path: Path, rows: int = 2) -> list[RawBatch]:
    return list(read_batches(path, path.name, WANTED, rows, "data.columns"))


def rows_of(batches: list[RawBatch]) -> list[tuple]:
    return [
        row for raw in batches for row in zip(raw.numbers, raw.columns["question"], raw.columns["answer"], strict=True)
    ]


def faults_of(batches: list[RawBatch]) -> list[tuple[int, str]]:
    return [(row.number, row.reason) for raw in batches for row in raw.unreadable]


def test_jsonl_rows_keep_their_line_numbers_over_blank_and_broken_lines(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(
        b'\xef\xbb\xbf{"question": "a", "answer": 1}\n\n{"question": "b"\n[1]\n{"question": "c", "answer": "3"}\n'
        b'{"question": "\xff", "answer": "4"}\n{"question": "e"}'
    )
    batches = read(path)
    assert rows_of(batches) == [(1, "a", 1), (5, "c", "3"), (7, "e", None)]
    assert [number for number, _ in faults_of(batches)] == [3, 4, 6]
    assert "Expecting ',' delimiter" in faults_of(batches)[0][1]
    assert faults_of(batches)[1][1] == "is not a JSON object"
    assert "not UTF-8" in faults_of(batches)[2][1]


def test_a_json_array_is_refused_with_the_way_to_make_lines_of_it(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text('[\n{"question": "a", "answer": "1"}\n]')
    with pytest.raises(BadInputError, match=r"one JSON array; .*jq -c '\.\[\]' rows.json"):
        read(path)


def test_csv_rows_count_lines_as_an_editor_does(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(
        b'\xef\xbb\xbfanswer,question\n1,"two\nlines, one row"\n2,b\n3\n4,d,extra\n\n5,e\n6,""\n7,"never closed\n8,h\n'
    )
    batches = read(path, rows=3)
    assert rows_of(batches) == [(2, "two\nlines, one row", "1"), (4, "b", "2"), (8, "e", "5"), (9, None, "6")]
    assert faults_of(batches) == [
        (5, "has 1 fields, the header has 2"),
        (6, "has 3 fields, the header has 2"),
        (10, "opens a quote that is never closed, so that the rest of the file is one field"),
    ]


def test_gzipped_text_and_tabs_are_read(tmp_path: Path) -> None:
    path = tmp_path / "rows.tsv.gz"
    path.write_bytes(gzip.compress(b"question\tanswer\na\t1\n"))
    assert rows_of(read(path)) == [(2, "a", "1")]
    assert estimate_rows(path) == 3


def test_a_cut_off_gzip_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"question": "a", "answer": "1"}\n' * 1000)[:60])
    with pytest.raises(BadInputError, match=r"rows.jsonl.gz cannot be read"):
        read(path)


def test_parquet_rows_are_numbered_from_one(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"question": ["a", "b", "c"], "answer": [1, 2, 3], "more": [0, 0, 0]}), path)
    assert rows_of(read(path)) == [(1, "a", 1), (2, "b", 2), (3, "c", 3)]
    assert estimate_rows(path) == 3


def test_a_damaged_parquet_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    path.write_bytes(b"PAR1 not really")
    with pytest.raises(BadInputError, match=r"rows.parquet is not a readable Parquet file"):
        read(path)


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.csv", "rows.parquet"])
def test_a_missing_column_is_named_beside_those_there_are(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name.endswith("jsonl"):
        path.write_text('{"question": "a", "answr": "1"}\n')
    elif name.endswith("csv"):
        path.write_text("question,answr\na,1\n")
    else:
        pq.write_table(pa.table({"question": ["a"], "answr": ["1"]}), path)
    with pytest.raises(BadInputError, match=r"no column 'answer' .* it has: question, answr; did you mean 'answr'\?"):
        read(path)


def test_another_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"rows.xlsx is no .jsonl, .csv, .tsv or .parquet"):
        read(tmp_path / "rows.xlsx")


def test_an_empty_csv_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("")
    with pytest.raises(BadInputError, match=r"rows.csv is empty"):
        read(tmp_path / "rows.csv")

"""The last pass: one split's rows to one Parquet file, in batches, with the fingerprint of what was written.

Called by `prepare_dataset`. The bytes depend on the rows alone: row groups have a fixed size whatever the batches were,
and nothing like a time is written. Memory holds one row group.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from components.prepare_dataset.cleaning import KEPT_PREFIX
from components.prepare_dataset.keys import count_values, largest_rows, percentiles
from components.prepare_dataset.prompts import MESSAGES, PromptBuilder
from components.prepare_dataset.selection import Selection

_ROW_GROUP = 4096
_LONGEST_SHOWN = 5
_LABELS_SHOWN = 10
_SAMPLES_SHOWN = 3
_EXCERPT = 300


@dataclass(frozen=True)
class WrittenSplit:
    """One split as written.

    Attributes:
        rows: number of rows.
        fingerprint: sha256 (64 hex) over ids and content of the rows in order; prompts and token counts, which follow
            from contract and tokenizer, are not in it.
        tokens: figures of prompt length: mean, p50, p90, p95, p99, max.
        longest: the longest prompts: tokens, id, question.
        labels: distribution of gold answers: distinct, most_common_share, top.
        samples: the first prompts as the model reads them, with their gold answers.
    """

    rows: int
    fingerprint: str
    tokens: dict[str, float]
    longest: list[dict[str, Any]]
    labels: dict[str, Any]
    samples: list[dict[str, str]]


def write_split(selection: Selection, prompts: PromptBuilder, path: Path) -> WrittenSplit:
    """Write the rows that are in.

    Args:
        selection: a source and its rows that are in.
        prompts: makes the chat messages.
        path: the Parquet file.
    """
    source = selection.source
    rows = int(np.count_nonzero(selection.keep))
    kept_types = source.kept_types
    schema = pa.schema(
        [
            pa.field("id", pa.string()),
            pa.field("prompt", MESSAGES),
            pa.field("question", pa.string()),
            pa.field("answer", pa.string()),
            pa.field("solution", pa.string()),
            pa.field("prompt_tokens", pa.int32()),
            *(pa.field(name, kind) for name, kind in kept_types.items()),
        ]
    )
    distinct, label_keys, label_counts = count_values(source.answer_keys[selection.keep], _LABELS_SHOWN)
    label_texts: dict[int, str] = {}
    longest_rows = largest_rows(source.tokens, selection.keep, _LONGEST_SHOWN)
    longest: list[dict[str, Any]] = []
    samples: list[dict[str, str]] = []
    digest = hashlib.sha256()
    pending: list[pa.RecordBatch] = []
    pending_rows = 0

    with pq.ParquetWriter(path, schema, compression="zstd", use_dictionary=True) as writer:

        def flush(least: int) -> None:
            nonlocal pending, pending_rows
            while pending_rows >= least and pending_rows:
                table = pa.Table.from_batches(pending)
                group, rest = table.slice(0, _ROW_GROUP), table.slice(_ROW_GROUP)
                writer.write_table(_finished(group, schema, prompts), row_group_size=_ROW_GROUP)
                pending, pending_rows = rest.combine_chunks().to_batches(), rest.num_rows

        for start, batch in source.batches():
            stop = start + batch.num_rows
            places = np.flatnonzero(selection.keep[start:stop])
            if not len(places):
                continue
            taken = batch.take(pa.array(places)).append_column(
                "prompt_tokens", pa.array(source.tokens[start:stop][places])
            )
            _update(digest, taken)
            if len(label_texts) < len(label_keys):
                batch_keys = source.answer_keys[start:stop][places]
                for place in np.flatnonzero(np.isin(batch_keys, label_keys)).tolist():
                    label_texts.setdefault(int(batch_keys[place]), taken.column("answer")[place].as_py())
            for place in [row - start for row in longest_rows if start <= row < stop]:
                longest.append(
                    {
                        "tokens": int(source.tokens[start + place]),
                        "id": batch.column("id")[place].as_py(),
                        "question": batch.column("question")[place].as_py()[:_EXCERPT],
                    }
                )
            for row in taken.slice(0, _SAMPLES_SHOWN - len(samples)).to_pylist():
                samples.append({"prompt": prompts.render(row["question"]), "answer": row["answer"]})
            pending.append(taken)
            pending_rows += taken.num_rows
            flush(_ROW_GROUP)
        flush(1)
    return WrittenSplit(
        rows=rows,
        fingerprint=digest.hexdigest(),
        tokens=_token_figures(source.tokens[selection.keep]),
        longest=sorted(longest, key=lambda row: (-row["tokens"], row["id"])),
        labels={
            "distinct": distinct,
            "most_common_share": round(float(label_counts[0] / rows), 4) if rows else 0.0,
            "top": [
                {"answer": label_texts[int(key)], "rows": int(count)}
                for key, count in zip(label_keys, label_counts, strict=True)
            ],
        },
        samples=samples,
    )


def _finished(table: pa.Table, schema: pa.Schema, prompts: PromptBuilder) -> pa.Table:
    columns = []
    for field in schema:
        if field.name == "prompt":
            columns.append(prompts.messages(table.column("question").to_pylist()))
        elif field.name in table.column_names:
            columns.append(table.column(field.name))
        else:
            texts = table.column(KEPT_PREFIX + field.name).to_pylist()
            columns.append(pa.array([json.loads(text) for text in texts], field.type))
    return pa.table(columns, schema=schema)


def _update(digest: Any, batch: pa.RecordBatch) -> None:
    names = ["id", "question", "answer", "solution", *(n for n in batch.schema.names if n.startswith(KEPT_PREFIX))]
    columns = [batch.column(name).to_pylist() for name in names]
    # Length before text, so that no two different rows give the same bytes.
    parts = ["-" if value is None else f"{len(value)}:{value}" for row in zip(*columns, strict=True) for value in row]
    digest.update("".join(parts).encode())


def _token_figures(tokens: np.ndarray) -> dict[str, float]:
    if not len(tokens):
        return {}
    points = (50, 90, 95, 99)
    figures = {f"p{point}": value for point, value in zip(points, percentiles(tokens, points), strict=True)}
    return {"mean": round(float(tokens.mean()), 1), **figures, "max": int(tokens.max())}

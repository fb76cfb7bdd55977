"""The same rows answered by two models, side by side; and the refusal of evaluations that cannot be compared.

Called by judge_candidate, and by promotion for version against champion.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as parquet

from components.errors import BadInputError

COMPARED = (
    "format",
    "engine",
    "version",
    "dtype",
    "device",
    "sampling",
    "contract_hash",
    "holdout_fingerprint",
    "limit",
)
"""Settings that must be equal: each changes figures by itself."""

_MEND = "evaluate both again with one config on one machine"


@dataclass(frozen=True)
class StoredEvaluation:
    """An evaluation artifact as read.

    Attributes:
        settings: settings.json.
        metrics: metrics.json.
        samples: rows of samples.parquet.
    """

    settings: dict[str, Any]
    metrics: dict[str, dict[str, Any]]
    samples: list[dict[str, Any]]


@dataclass(frozen=True)
class Pairs:
    """Two models on the same rows, aligned.

    Attributes:
        ids: row ids, each once.
        base: samples of the base, one list a row.
        candidate: samples of the candidate, one list a row.
    """

    ids: list[str]
    base: list[list[dict[str, Any]]]
    candidate: list[list[dict[str, Any]]]

    @property
    def single(self) -> bool:
        """Whether there is one completion a row."""
        return all(len(group) == 1 for group in (*self.base, *self.candidate))

    def rates(self, column: str) -> tuple[np.ndarray, np.ndarray]:
        """Share of true values in a row's completions, for base and candidate, shape (rows,)."""
        return (
            np.array([np.mean([bool(sample[column]) for sample in group]) for group in self.base]),
            np.array([np.mean([bool(sample[column]) for sample in group]) for group in self.candidate]),
        )


def read_evaluation(directory: Path) -> StoredEvaluation:
    """Read an evaluation artifact.

    Raises:
        BadInputError: the directory holds none.
    """
    for name in ("settings.json", "metrics.json", "samples.parquet"):
        if not (directory / name).exists():
            raise BadInputError(f"{directory} holds no {name}; give the evaluation that evaluate_holdout wrote")
    return StoredEvaluation(
        json.loads((directory / "settings.json").read_text(encoding="utf-8")),
        json.loads((directory / "metrics.json").read_text(encoding="utf-8")),
        parquet.read_table(directory / "samples.parquet").to_pylist(),
    )


def refuse_incomparable(base: Mapping[str, Any], candidate: Mapping[str, Any]) -> None:
    """Refuse two evaluations that differ in more than the model.

    Args:
        base: settings of the one.
        candidate: settings of the other.

    Raises:
        BadInputError: naming the setting and both values.
    """
    for name in COMPARED:
        one, other = base.get(name), candidate.get(name)
        if one == other:
            continue
        if isinstance(one, dict) and isinstance(other, dict):
            for key in sorted({*one, *other}):
                if one.get(key) != other.get(key):
                    one, other, name = one.get(key), other.get(key), f"{name}.{key}"
                    break
        raise BadInputError(
            f"base and candidate cannot be compared: {name} is {_show(one)} for the base and {_show(other)} for the "
            f"candidate; {_MEND}"
        )


def pair(
    base: Sequence[Mapping[str, Any]],
    candidate: Sequence[Mapping[str, Any]],
    decoding: str,
    question_set: str = "holdout",
) -> Pairs:
    """Align samples by row id.

    Args:
        base: samples of the base.
        candidate: samples of the candidate.
        decoding: `greedy` or `sampled`.
        question_set: `holdout` or a further set's name.

    Raises:
        BadInputError: no such samples, or the two have different rows.
    """
    grouped = [_group(samples, decoding, question_set) for samples in (base, candidate)]
    for name, groups in zip(("base", "candidate"), grouped, strict=True):
        if not groups:
            mend = "set evaluation.samples, or gates.decoding: greedy" if decoding == "sampled" else _MEND
            raise BadInputError(f"the {name}'s evaluation has no {decoding} completions of {question_set}; {mend}")
    one, other = grouped
    if one.keys() != other.keys():
        odd = sorted(one.keys() ^ other.keys())
        side = "base" if odd[0] in one else "candidate"
        raise BadInputError(f"{len(odd)} rows were evaluated for one model only (first: {odd[0]}, {side}); {_MEND}")
    return Pairs(list(one), list(one.values()), [other[key] for key in one])


def _group(samples: Sequence[Mapping[str, Any]], decoding: str, question_set: str) -> dict[str, list[dict[str, Any]]]:
    groups: dict[str, list[dict[str, Any]]] = {}
    for sample in samples:
        if sample.get("decoding", "greedy") == decoding and sample.get("set", "holdout") == question_set:
            groups.setdefault(str(sample["id"]), []).append(dict(sample))
    return groups


def _show(value: Any) -> str:
    return "absent" if value is None else json.dumps(value, sort_keys=True, default=str)

"""Judges a candidate against its base model on the same holdout rows: pairs, differences, gates, verdict.

Called by component.py. Pure: reads two evaluations and the ids of the training split, writes a verdict. It refuses
evaluations made with different engines, precision, decoding, contract or holdout. It knows nothing of a champion, which
changes: promotion compares with that. A verdict that is not pass does not raise here; register_model ends the run.
"""

import json
import logging
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet

from components.errors import BadInputError
from components.judge_candidate.config import GatesConfig
from components.judge_candidate.gates import Difference, Gate, Status, apply_gates, compare, overall
from components.judge_candidate.pairs import Pairs, pair, read_evaluation, refuse_incomparable
from components.judge_candidate.statistics import mcnemar_exact
from components.sections import content_hash
from components.storage.references import Reference
from components.storage.store import ArtifactStore

log = logging.getLogger("grpo")

FORMAT = 1
"""Raised when the verdict's form or a gate's meaning changes."""

COMPARED_METRICS = {
    "format_compliance": "strict",
    "format_compliance_lenient": "lenient",
    "accuracy_strict": "correct_strict",
    "accuracy_lenient": "correct_lenient",
    "truncation_rate": "truncated",
}


@dataclass(frozen=True)
class Verdict:
    """A stored verdict.

    Attributes:
        reference: the artifact: verdict.json, pairs.parquet.
        verdict: pass, fail or inconclusive.
        gates: each gate with its sentence.
        differences: by metric.
    """

    reference: Reference
    verdict: Status
    gates: list[Gate]
    differences: dict[str, Difference]


def judge_candidate(
    base_directory: Path,
    candidate_directory: Path,
    gates: GatesConfig,
    store: ArtifactStore,
    *,
    dataset_directory: Path | None,
    work: Path,
    code: str = "",
) -> Verdict:
    """Compare two evaluations row by row and hold the candidate to the gates.

    Args:
        base_directory: the base model's evaluation.
        candidate_directory: the candidate's evaluation.
        gates: the config section.
        store: where the verdict goes, below `verdicts/`.
        dataset_directory: the prepared dataset, whose training rows must not be in the holdout; None skips that gate's
            look at the data (nothing was trained here).
        work: local folder for files being made.
        code: fingerprint of the step's code, part of the key.

    Raises:
        BadInputError: the two cannot be compared, naming what differs and both values.
    """
    base, candidate = read_evaluation(base_directory), read_evaluation(candidate_directory)
    refuse_incomparable(base.settings, candidate.settings)
    pairs = pair(base.samples, candidate.samples, gates.decoding)
    leaked = sorted(set(pairs.ids) & training_ids(dataset_directory)) if dataset_directory is not None else []
    results = apply_gates(pairs, gates, leaked)
    verdict = overall(results)
    differences = {name: compare(pairs, column, gates.confidence) for name, column in COMPARED_METRICS.items()}
    content = {
        "format": FORMAT,
        "verdict": str(verdict),
        "decoding": gates.decoding,
        "rows": len(pairs.ids),
        "confidence": gates.confidence,
        "gates": [asdict(gate) for gate in results],
        "differences": {
            name: asdict(figure) | {"mcnemar_p": mcnemar_exact(figure.wins, figure.losses) if pairs.single else None}
            for name, figure in differences.items()
        },
        "notes": _notes(base.settings, candidate.settings, gates),
        "base_model": base.settings["model_digest"],
        "candidate_model": candidate.settings["model_digest"],
        "holdout_fingerprint": base.settings["holdout_fingerprint"],
        "contract_hash": base.settings["contract_hash"],
        "config": gates.model_dump(mode="json"),
    }
    key = f"verdicts/{content_hash(content, base.settings, candidate.settings, code)[:32]}"
    provenance = {"kind": "verdict", "base": content["base_model"], "candidate": content["candidate_model"]}
    reference = store.find(key)
    if reference is None:
        work.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=work, prefix="verdict-") as folder:
            _write(Path(folder), content, side_by_side(pairs))
            reference = store.put(Path(folder), key, provenance=provenance)
    for gate in results:
        log.info("%s: %s", gate.status, gate.sentence)
    return Verdict(reference, verdict, results, differences)


def training_ids(dataset_directory: Path) -> set[str]:
    """Ids (content hashes) of the training rows.

    Raises:
        BadInputError: the directory is no prepared dataset.
    """
    path = dataset_directory / "train.parquet"
    if not path.exists():
        raise BadInputError(f"{dataset_directory} holds no train.parquet; give the dataset that prepare_dataset wrote")
    return set(parquet.read_table(path, columns=["id"]).column("id").to_pylist())


def side_by_side(pairs: Pairs) -> list[dict[str, Any]]:
    """One row a holdout row: both first completions, and who won on strict and on lenient accuracy.

    Args:
        pairs: both models.
    """
    outcomes = {}
    for name in ("correct_strict", "correct_lenient", "strict"):
        base, candidate = pairs.rates(name)
        outcomes[name] = ["won" if c > b else "lost" if c < b else "tied" for b, c in zip(base, candidate, strict=True)]
    rows = []
    for index, identity in enumerate(pairs.ids):
        base_sample, candidate_sample = pairs.base[index][0], pairs.candidate[index][0]
        row = {
            "id": identity,
            "question": base_sample.get("question") or base_sample.get("prompt_text"),
            "gold": base_sample["gold"],
            "outcome_strict": outcomes["correct_strict"][index],
            "outcome_lenient": outcomes["correct_lenient"][index],
            "outcome_format": outcomes["strict"][index],
        }
        for side, sample in (("base", base_sample), ("candidate", candidate_sample)):
            for name in ("completion", "strict", "reasons", "answer_read_lenient", "correct_strict", "correct_lenient"):
                row[f"{side}_{name}"] = sample[name]
            row[f"{side}_tokens"] = sample["tokens"]
            row[f"{side}_truncated"] = sample["truncated"]
        rows.append(row)
    return rows


def _notes(base: dict[str, Any], candidate: dict[str, Any], gates: GatesConfig) -> list[str]:
    """What a reader should know beside the gates."""
    notes = []
    if base.get("prompts_hash") != candidate.get("prompts_hash"):
        notes.append(
            "The two models' chat templates render the same messages differently: part of a difference may come from "
            "the prompt and not from the weights."
        )
    if base.get("model_digest") == candidate.get("model_digest"):
        notes.append("Base and candidate are the same weights.")
    if gates.decoding == "sampled":
        notes.append("Several completions a row: intervals are bootstrapped over rows, and McNemar's test is left out.")
    return notes


def _write(folder: Path, content: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    (folder / "verdict.json").write_text(json.dumps(content, indent=1, sort_keys=True), encoding="utf-8")
    parquet.write_table(pa.Table.from_pylist(rows), folder / "pairs.parquet", compression="zstd")

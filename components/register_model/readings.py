"""What the earlier steps left, read and put in the shapes MLflow, the report and the closing table want.

Called by register_model.py. Reads artifacts through references, so every byte is verified before it is reported.
"""

import json
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as parquet

from components.storage.references import Reference
from components.storage.store import fetch, open_store

if TYPE_CHECKING:
    from components.register_model.register_model import RegistrationInputs

Figures = dict[str, dict[str, float | int | None]]


@dataclass(frozen=True)
class EvaluationReading:
    """One evaluation.

    Attributes:
        metrics: name -> value, low, high, n.
        settings: engine, decoding, contract and holdout it was made with.
        samples: one row a completion.
    """

    metrics: Figures
    settings: dict[str, Any]
    samples: list[dict[str, Any]]


@dataclass(frozen=True)
class Reading:
    """Everything the run left.

    Attributes:
        verdict: verdict.json.
        pairs: base and candidate side by side, one row a holdout row.
        base: the base model's evaluation.
        candidate: the merged model's evaluation.
        training: training.json.
        dataset: the dataset's report.
        holdout: the holdout's report.
        smoke: the smoke test's report.
        base_provenance: where the base model came from.
    """

    verdict: dict[str, Any]
    pairs: list[dict[str, Any]]
    base: EvaluationReading
    candidate: EvaluationReading
    training: dict[str, Any]
    dataset: dict[str, Any]
    holdout: dict[str, Any]
    smoke: dict[str, Any]
    base_provenance: dict[str, Any]

    @property
    def rows(self) -> int:
        """Holdout rows judged."""
        return int(self.verdict["rows"])

    @property
    def steps(self) -> int:
        """Optimizer steps of the training, all stages."""
        return sum(int(stage["steps"]) for stage in self.training["stages"])

    def table(self) -> dict[str, dict[str, dict[str, float]]]:
        """The judged metrics: name -> base, candidate, delta, each with value, low and high."""
        return {
            name: {"base": entry["base"], "candidate": entry["candidate"], "delta": entry["difference"]}
            for name, entry in self.verdict["differences"].items()
        }

    def flat_metrics(self) -> dict[str, float | None]:
        """The evaluation as MLflow metrics: eval/base/*, eval/candidate/*, eval/delta/*, with /low and /high."""
        flat: dict[str, float | None] = {}
        for side, reading in (("base", self.base), ("candidate", self.candidate)):
            for name, figure in reading.metrics.items():
                flat |= _with_ends(f"eval/{side}/{name}", figure)
        for name, entry in self.verdict["differences"].items():
            flat |= _with_ends(f"eval/delta/{name}", entry["difference"])
            flat[f"eval/delta/{name}/wins"] = float(entry["wins"])
            flat[f"eval/delta/{name}/losses"] = float(entry["losses"])
            flat[f"eval/delta/{name}/mcnemar_p"] = entry["mcnemar_p"]
        return flat

    def gate_sentences(self) -> list[str]:
        """One sentence a gate, its status in front."""
        return [f"{gate['status']}: {gate['sentence']}" for gate in self.verdict["gates"]]

    def failed_gates(self) -> list[str]:
        """Sentences of the gates that did not pass."""
        return [gate["sentence"] for gate in self.verdict["gates"] if gate["status"] != "pass"]

    def counts(self, context: str) -> dict[str, Any]:
        """How many rows a split has, for MLflow's dataset entry.

        Args:
            context: training or holdout.
        """
        report = self.dataset if context == "training" else self.holdout
        counts: dict[str, Any] = report.get("counts", report.get("rows", {}))
        return counts if isinstance(counts, dict) else {"rows": counts}


def read_results(inputs: "RegistrationInputs", work: Path) -> Reading:
    """Fetch and read every artifact the report needs.

    Args:
        inputs: the step's inputs.
        work: local folder for downloads.
    """

    def folder(reference: Reference) -> Path:
        return fetch(reference, work / "cache", config=inputs.store)

    verdict = folder(inputs.verdict)
    adapter = folder(inputs.adapter)
    return Reading(
        verdict=_json(verdict / "verdict.json"),
        pairs=parquet.read_table(verdict / "pairs.parquet").to_pylist(),
        base=_evaluation(folder(inputs.base_evaluation)),
        candidate=_evaluation(folder(inputs.candidate_evaluation)),
        training=_json(adapter / "training.json"),
        dataset=_json(folder(inputs.dataset) / "report.json"),
        holdout=_json(folder(inputs.holdout) / "report.json"),
        smoke=_json(folder(inputs.smoke_test) / "report.json"),
        base_provenance=dict(open_store(inputs.store).read_manifest(inputs.base).provenance),
    )


def versions_now() -> dict[str, str]:
    """Versions of what judged and registered."""
    found = {}
    for package in ("mlflow", "kfp", "scipy", "grpo-pipeline"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _evaluation(directory: Path) -> EvaluationReading:
    return EvaluationReading(
        metrics=_json(directory / "metrics.json"),
        settings=_json(directory / "settings.json"),
        samples=parquet.read_table(directory / "samples.parquet").to_pylist(),
    )


def _with_ends(name: str, figure: dict[str, Any]) -> dict[str, float | None]:
    """A figure and the ends of its interval, as three metrics."""
    return {
        name: figure["value"],
        **{f"{name}/{end}": figure[end] for end in ("low", "high") if figure.get(end) is not None},
    }


def _json(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content

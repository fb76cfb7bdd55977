"""What the earlier steps left, read and put in the shapes MLflow, the report and the closing table want.

Called by register_model.py. Reads artifacts through references, so every byte is verified before it is reported.
"""

import json
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from components.register_model.inputs import RegistrationInputs
from components.storage.references import Reference
from components.storage.store import fetch, open_store

Figures = dict[str, dict[str, float | int | None]]


@dataclass(frozen=True)
class EvaluationReading:
    """One evaluation.

    Attributes:
        metrics: name -> value, low, high, n.
        settings: engine, decoding, contract and holdout it was made with.
        folder: the artifact's files.
    """

    metrics: Figures
    settings: dict[str, Any]
    folder: Path

    @cached_property
    def samples(self) -> list[dict[str, Any]]:
        """One row a completion."""
        return _rows(self.folder / "samples.parquet")


@dataclass(frozen=True)
class Reading:
    """Everything the run left.

    Attributes:
        verdict: verdict.json.
        base: the base model's evaluation.
        candidate: the merged model's evaluation.
        training: training.json.
        dataset: the dataset's report.
        holdout: the holdout's report.
        smoke: the smoke test's report.
        base_provenance: where the base model came from.
        verdict_folder: the verdict's files.
    """

    verdict: dict[str, Any]
    base: EvaluationReading
    candidate: EvaluationReading
    training: dict[str, Any]
    dataset: dict[str, Any]
    holdout: dict[str, Any]
    smoke: dict[str, Any]
    base_provenance: dict[str, Any]
    verdict_folder: Path

    @cached_property
    def pairs(self) -> list[dict[str, Any]]:
        """Base and candidate side by side, one row a holdout row."""
        return _rows(self.verdict_folder / "pairs.parquet")

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

    def cost(self, gpus: int) -> dict[str, float]:
        """What the training cost, as MLflow metrics: seconds, GPU-hours, tokens, most memory in MiB.

        Args:
            gpus: GPUs asked for; a training on a CPU cost none.
        """
        on_cpu = str(self.training["versions"].get("device", "CPU")) == "CPU"
        seconds = float(self.training["seconds"])
        return {
            "cost/train_seconds": seconds,
            "cost/gpu_hours": 0.0 if on_cpu else seconds * max(1, gpus) / 3600,
            "cost/tokens": float(self.training["tokens"]),
            "cost/peak_memory_mib": float(self.training["peak_memory_mib"]),
        }

    def facts(self, config: dict[str, Any], commit: str) -> dict[str, str]:
        """What was trained on what, with which seeds and code, for the report: label -> text.

        Args:
            config: the whole run config.
            commit: of the code; empty when it is not known.
        """
        sources = {**self.dataset.get("sources", {}), **self.holdout.get("sources", {})}
        seeds = {"run": config["run"]["seed"], "split": config.get("data", {}).get("seed")}
        seeds["evaluation"] = config.get("evaluation", {}).get("seed")
        origin = self.base_provenance
        seconds, tokens = float(self.training["seconds"]), float(self.training["tokens"])
        facts = {f"Data, {name}": describe_source(source) for name, source in sources.items()}
        facts["Base licence"] = str(origin.get("licence") or "")
        facts["Seeds"] = ", ".join(f"{name} {seed}" for name, seed in seeds.items() if seed is not None)
        device = self.training["versions"].get("device", "")
        facts["Training took"] = f"{_duration(seconds)} on {device}" if device else _duration(seconds)
        facts["Tokens trained on"] = f"{tokens:,.0f}" if tokens else ""
        facts["Most memory"] = f"{float(self.training['peak_memory_mib']):,.0f} MiB"
        facts["Code"] = f"commit {commit}" if commit else ""
        return {label: text for label, text in facts.items() if text}

    def counts(self, context: str) -> dict[str, Any]:
        """How many rows a split has, for MLflow's dataset entry.

        Args:
            context: training or holdout.
        """
        report = self.dataset if context == "training" else self.holdout
        counts: dict[str, Any] = report.get("counts", report.get("rows", {}))
        return counts if isinstance(counts, dict) else {"rows": counts}


def read_results(inputs: RegistrationInputs, work: Path) -> Reading:
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
        base=_evaluation(folder(inputs.base_evaluation)),
        candidate=_evaluation(folder(inputs.candidate_evaluation)),
        training=_json(adapter / "training.json"),
        dataset=_json(folder(inputs.dataset) / "report.json"),
        holdout=_json(folder(inputs.holdout) / "report.json"),
        smoke=_json(folder(inputs.smoke_test) / "report.json"),
        base_provenance=dict(open_store(inputs.store).read_manifest(inputs.base).provenance),
        verdict_folder=verdict,
    )


def describe_source(source: dict[str, Any]) -> str:
    """Where rows came from, in a line: files with the start of their hash, a hub dataset with its commit, a task.

    Args:
        source: its entry in the dataset's report.
    """
    files = [f"{file['name']} (sha256 {str(file['sha256'])[:12]}…)" for file in source.get("files", [])]
    shown = files[:3] + ([f"and {len(files) - 3} files more"] if len(files) > 3 else [])
    named = [str(source[key]) for key in ("hub", "dataset", "task", "uri", "reference") if source.get(key)]
    named += [f"at {str(source['revision'])[:12]}"] if source.get("revision") else []
    rows = [f"{source['rows_kept']:,} of {source['rows_read']:,} rows"] if source.get("rows_read") else []
    return ", ".join([*([" ".join(named)] if named else []), *shown, *rows])


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
        folder=directory,
    )


def _with_ends(name: str, figure: dict[str, Any]) -> dict[str, float | None]:
    """A figure and the ends of its interval, as three metrics."""
    return {
        name: figure["value"],
        **{f"{name}/{end}": figure[end] for end in ("low", "high") if figure.get(end) is not None},
    }


def _duration(seconds: float) -> str:
    """Seconds as a person says them."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _rows(path: Path) -> list[dict[str, Any]]:
    """A parquet file's rows. pyarrow is imported when rows are wanted: a run that changed nothing asks for none."""
    import pyarrow.parquet as parquet

    rows: list[dict[str, Any]] = parquet.read_table(path).to_pylist()
    return rows


def _json(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content

"""The step: data becomes two artifacts, the dataset (train and validation) and the holdout, or a clear refusal.

Called by `component.py`; a test or a notebook calls `prepare_dataset` directly. Reads top to bottom: bring the sources
here, scan each once (`scan`), decide which rows stay and where they go (`selection`, `overlap`), write the splits
(`writing`), report, store. Refuses what `DataConfig` says to refuse: missing files, no rows, broken rows, gold answers
no completion could equal, repeats and long prompts over a share, a holdout that overlaps train.

Memory does not grow with the text: 24 bytes a row of each source (and as much again for a moment, while sorting),
and about 8 KB for each question of holdout and validation, which train is compared with. Disk in `work` holds the clean
rows once, compressed. Equal inputs give equal bytes.
"""

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from components.contract import Contract
from components.contract.tokenizer import load_tokenizer
from components.errors import BadInputError
from components.prepare_dataset.cleaning import ScanRules
from components.prepare_dataset.config import DataConfig, HubSource
from components.prepare_dataset.overlap import NearIndex, text_key, tokens_of
from components.prepare_dataset.prompts import PromptBuilder
from components.prepare_dataset.report import FORMAT, describe_source, describe_split, find_warnings, render_markdown
from components.prepare_dataset.scan import ScannedSource, scan_source
from components.prepare_dataset.selection import (
    Selection,
    check_near_overlap,
    check_overlap,
    conflicting_rows,
    questions_of,
    select_clean,
    split_from_train,
)
from components.prepare_dataset.sources import resolve_source
from components.prepare_dataset.writing import WrittenSplit, write_split
from components.sections import content_hash
from components.storage.disk import disk_errors
from components.storage.manifest import make_manifest
from components.storage.references import Reference
from components.storage.store import ArtifactStore

_LATER = {"train": ("validation", "holdout"), "validation": ("holdout",)}
"""Each split, and those whose questions it must not hold."""


@dataclass(frozen=True)
class PreparedDataset:
    """What the step hands on.

    Attributes:
        dataset: artifact with train.parquet, validation.parquet, report.json, report.md.
        holdout: artifact with holdout.parquet, report.json.
        fingerprint: sha256 (64 hex) over the rows of train and validation.
        holdout_fingerprint: sha256 (64 hex) over the rows of the holdout.
        counts: rows of train, validation and holdout.
        longest_prompt_tokens: the longest prompt of any split.
        warnings: what is odd, one sentence each.
    """

    dataset: Reference
    holdout: Reference
    fingerprint: str
    holdout_fingerprint: str
    counts: dict[str, int]
    longest_prompt_tokens: int
    warnings: tuple[str, ...]


def prepare_dataset(
    data: DataConfig, contract: Contract, model_directory: Path, store: ArtifactStore, *, work: Path
) -> PreparedDataset:
    """Prepare, check and store the data of a run.

    Args:
        data: the run's `data` section, paths absolute.
        contract: the run's task contract.
        model_directory: the base model, for its tokenizer and chat template.
        store: where the artifacts go.
        work: folder for scratch files; what is written there is removed again.

    Returns:
        References, fingerprints and counts.

    Raises:
        BadInputError: when the data must not be trained on, or the disk is full; the message names the mend.
        PipelineError: when the hub or the store fails.
    """
    with disk_errors(work):
        work.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="prepare-", dir=work) as folder:
            return _prepare(data, contract, model_directory, store, Path(folder))


def _prepare(
    data: DataConfig, contract: Contract, model_directory: Path, store: ArtifactStore, work: Path
) -> PreparedDataset:
    prompts = PromptBuilder(contract, load_tokenizer(model_directory, contract))
    scanned = _scan_sources(data, contract, prompts, work)
    given = {name: select_clean(source, data) for name, source in scanned.items()}
    splits = given | split_from_train(given["train"], data)
    near = _check_leaks(splits, data)
    _check_examples(contract, splits["holdout"])
    for name, selection in splits.items():
        if not selection.keep.any():
            raise BadInputError(f"data.{name}: every row is in a later split too; give other rows")

    dataset_folder, holdout_folder = work / "dataset", work / "holdout"
    dataset_folder.mkdir()
    holdout_folder.mkdir()
    written = {
        name: write_split(splits[name], prompts, folder / f"{name}.parquet")
        for name, folder in (("train", dataset_folder), ("validation", dataset_folder), ("holdout", holdout_folder))
    }
    report = _make_report(data, contract, prompts, splits, written, near)
    fingerprint = content_hash(written["train"].fingerprint, written["validation"].fingerprint)
    _write_reports(report, fingerprint, dataset_folder, holdout_folder)
    references = {}
    for name, folder, mark in (
        ("dataset", dataset_folder, fingerprint),
        ("holdout", holdout_folder, written["holdout"].fingerprint),
    ):
        provenance = {"kind": name, "fingerprint": mark, **report["identity"], "sources": _origins(given)}
        files = make_manifest(folder, {}).files
        key = f"{name}s/{content_hash([[file.path, file.sha256] for file in files], provenance)[:32]}"
        references[name] = store.put(folder, key, provenance=provenance)
    return PreparedDataset(
        dataset=references["dataset"],
        holdout=references["holdout"],
        fingerprint=fingerprint,
        holdout_fingerprint=written["holdout"].fingerprint,
        counts={name: split.rows for name, split in written.items()},
        longest_prompt_tokens=max(int(split.tokens["max"]) for split in written.values()),
        warnings=tuple(report["warnings"]),
    )


def _scan_sources(data: DataConfig, contract: Contract, prompts: PromptBuilder, work: Path) -> dict[str, ScannedSource]:
    resolved = {}
    for name, source in data.sources().items():
        names = data.columns_of(source)
        columns = [names.question, names.answer, *([names.solution] if names.solution else []), *names.keep]
        resolved[name] = resolve_source(source, name=name, columns=columns, limit=data.limit, work=work)
    scanned = {}
    for name, source in data.sources().items():
        rules = ScanRules(
            name=name,
            columns=data.columns_of(source),
            gold=data.gold_of(source),
            limit=data.limit,
            batch_rows=data.batch_rows,
            max_broken_share=data.max_broken_share,
        )
        scanned[name] = scan_source(resolved[name], rules, contract, prompts, work)
    return scanned


def _check_leaks(splits: dict[str, Selection], data: DataConfig) -> dict[str, int]:
    """Check every split against the later ones; returns near copies by a phrase for the report."""
    for name in ("validation", "train"):
        for against in _LATER[name]:
            check_overlap(splits[name], splits[against], data, name=name, against=against)
    near = {}
    for against, names in (("holdout", ("validation", "train")), ("validation", ("train",))):
        questions, wheres = questions_of(splits[against])
        index = NearIndex(questions, data.near_overlap_similarity)
        for name in names:
            count = check_near_overlap(splits[name], index, data, name=name, against=against, wheres=wheres)
            near[f"{name} are near copies of {against}'s"] = count
    return near


def _check_examples(contract: Contract, holdout: Selection) -> None:
    """Refuse a few-shot example whose question the holdout asks: its answer would stand in every prompt."""
    for number, example in enumerate(contract.config.examples):
        key = np.frombuffer(text_key(tokens_of(example.question)), dtype="<u8")[0]
        found = np.flatnonzero((holdout.source.question_keys == key) & holdout.keep)
        if len(found):
            raise BadInputError(
                f"contract.examples[{number}]: its question is also in the holdout ({example.question[:80]!r}); "
                "take an example from the training rows"
            )


def _make_report(
    data: DataConfig,
    contract: Contract,
    prompts: PromptBuilder,
    splits: dict[str, Selection],
    written: dict[str, WrittenSplit],
    near: dict[str, int],
) -> dict[str, Any]:
    given = data.sources()
    sources = {
        name: describe_source([split for split in splits.values() if split.source is splits[name].source])
        for name in given
    }
    described = {name: describe_split(split) for name, split in written.items()}
    conflicts = {name: conflicting_rows(splits[name]) for name in given}
    unpinned = {
        name: sources[name]["revision"]
        for name, source in given.items()
        if isinstance(source, HubSource) and source.revision != sources[name]["revision"]
    }
    return {
        "format": FORMAT,
        "warnings": find_warnings(sources, described, near, conflicts, unpinned),
        "splits": described,
        "sources": sources,
        "checks": {"near_copies": near, "conflicting_answers": conflicts},
        "identity": {"contract": contract.hash, "tokenizer": prompts.digest},
    }


def _write_reports(report: dict[str, Any], fingerprint: str, dataset: Path, holdout: Path) -> None:
    """The dataset's report without the holdout's rows, the holdout's with them alone."""
    parts = {
        dataset: ("Dataset", ("train", "validation"), fingerprint),
        holdout: ("Holdout", ("holdout",), report["splits"]["holdout"]["fingerprint"]),
    }
    for folder, (title, names, mark) in parts.items():
        own = {
            **report,
            "title": title,
            "warnings": [text for text in report["warnings"] if (title == "Holdout") == text.startswith("holdout:")],
            "splits": {name: report["splits"][name] for name in names},
            "sources": {
                name: source
                for name, source in report["sources"].items()
                if name in names or (title == "Holdout" and "holdout" not in report["sources"] and name == "train")
            },
            "identity": {"fingerprint": mark, **report["identity"]},
        }
        if title == "Dataset":
            own["holdout"] = {key: report["splits"]["holdout"][key] for key in ("rows", "fingerprint")}
        text = json.dumps(own, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
        (folder / "report.json").write_text(text, encoding="utf-8")
        if title == "Dataset":
            (folder / "report.md").write_text(render_markdown(own), encoding="utf-8")


def _origins(given: dict[str, Selection]) -> dict[str, Any]:
    return {name: selection.source.files.provenance for name, selection in given.items()}

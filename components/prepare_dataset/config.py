"""The `data` section of a run config: where rows come from, what their columns are, how bad they may be, the split.

Read by `prepare_dataset` (the step) and by whoever submits a run (`local_files` says what has to travel with it).
Imports pydantic only. It refuses a source that is two things at once, a gold preset without its pattern, kept columns
that would clash with the dataset's own, and near-certain mistakes such as a share written as a percentage.
"""

import difflib
import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Discriminator, Field, Tag, field_validator, model_validator

from components.sections import Section

OWN_COLUMNS = ("id", "prompt", "question", "answer", "solution", "prompt_tokens")
"""Columns of the prepared Parquet files, in this order, before the kept ones."""

_TAKEN = frozenset({*OWN_COLUMNS, "prompts", "completion", "completions", "completion_ids", "prompt_ids", "images"})
_SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet")

Share = Annotated[float, Field(ge=0, le=1)]


class ColumnsConfig(Section):
    """Which column of the source holds what."""

    question: Annotated[str, Field(min_length=1)] = "question"
    """Column with the task's text; it becomes the user message."""

    answer: Annotated[str, Field(min_length=1)] = "answer"
    """Column the gold answer is read from (see `gold`)."""

    solution: str | None = None
    """Column with worked reasoning; null takes what the gold preset finds beside the answer, if it does."""

    keep: list[str] = []
    """Further columns to keep under their own names, for rewards that need them."""

    @field_validator("keep")
    @classmethod
    def _no_clash(cls, keep: list[str]) -> list[str]:
        for name in keep:
            if name in _TAKEN:
                raise ValueError(f"keep: {name!r} is a name the pipeline or the trainer uses itself; rename the column")
        repeated = sorted({name for name in keep if keep.count(name) > 1})
        if repeated:
            raise ValueError(f"keep: {repeated[0]!r} is named twice; name each column once")
        return keep


class GoldConfig(Section):
    """How the gold answer is read out of the answer column."""

    preset: Literal["plain", "gsm8k", "boxed", "regex"] = "plain"
    """`plain`: the whole text. `gsm8k`: the text after the last `####`; the text before it is the solution, without
    its <<calculator>> notes. `boxed`: inside the last \\boxed{...}; the whole text is the solution. `regex`: the last
    match of `pattern`; the text before it is the solution."""

    pattern: str | None = None
    """For `regex`: a Python regular expression with one group, the gold answer."""

    @model_validator(mode="after")
    def _pattern_with_regex_only(self) -> Self:
        if (self.preset == "regex") != (self.pattern is not None):
            raise ValueError(
                "gold.pattern belongs to gold.preset: regex, and regex needs it; write "
                r"gold: {preset: regex, pattern: 'Answer: (.+)'}"
            )
        if self.pattern is not None:
            try:
                groups = re.compile(self.pattern).groups
            except re.error as error:
                raise ValueError(f"gold.pattern {self.pattern!r} is no regular expression: {error}") from error
            if groups != 1:
                raise ValueError(f"gold.pattern {self.pattern!r} has {groups} groups; write exactly one: (...)")
        return self


def _gold_from_text(value: Any) -> Any:
    return {"preset": value} if isinstance(value, str) else value


Gold = Annotated[GoldConfig, BeforeValidator(_gold_from_text)]


class _Source(Section):
    columns: ColumnsConfig | None = None
    """Column names of this source, where they differ from `data.columns`."""

    gold: Gold | None = None
    """Gold preset of this source, where it differs from `data.gold`."""


class FileSource(_Source):
    """Rows in files."""

    path: Annotated[str, Field(min_length=1)]
    """A .jsonl, .csv, .tsv or .parquet file (text formats may be gzipped: .jsonl.gz), a folder of such files of one
    format, an s3:// URI of either, or an artifact reference (`<uri>@sha256:<hex>`)."""


class HubSource(_Source):
    """Rows of a dataset on the Hugging Face hub."""

    hub: Annotated[str, Field(pattern=r"^[\w.-]+(/[\w.-]+)?$")]
    """Dataset id, such as openai/gsm8k."""

    name: str | None = None
    """Configuration of the dataset, such as main."""

    split: Annotated[str, Field(min_length=1)] = "train"
    """Split of the dataset."""

    revision: str | None = None
    """Commit (40 hex digits) to read; null or a branch is resolved to its commit, which the report names."""


class GeneratedSource(_Source):
    """Rows made by a reasoning-gym task (needs the extra `generated-data`)."""

    task: Annotated[str, Field(min_length=1)]
    """Name of the task, such as basic_arithmetic or chain_sum."""

    seed: int = 0
    """Seed of the generator; the same seed gives the same rows."""

    size: Annotated[int, Field(ge=1)] = 1000
    """Rows to generate."""

    options: dict[str, Any] = {}
    """Further options of the task, such as {min_terms: 2, max_terms: 4}."""


_KINDS = ("path", "hub", "task")


def _kind(value: Any) -> str | None:
    if isinstance(value, Section):
        return {FileSource: "path", HubSource: "hub", GeneratedSource: "task"}.get(type(value))
    if not isinstance(value, dict):
        return None
    return next((key for key in _KINDS if key in value), None)


def _source_from_text(value: Any) -> Any:
    if isinstance(value, str):
        return {"path": value}
    if isinstance(value, dict) and len(kinds := [key for key in _KINDS if key in value]) > 1:
        raise ValueError(f"a source has one of path, hub and task; this one has {' and '.join(kinds)}")
    return value


Source = Annotated[
    Annotated[FileSource, Tag("path")] | Annotated[HubSource, Tag("hub")] | Annotated[GeneratedSource, Tag("task")],
    Discriminator(
        _kind,
        custom_error_type="source",
        custom_error_message="write a path, or a mapping with one of: path (file, folder, s3://), hub (dataset id), "
        "task (reasoning-gym)",
    ),
    BeforeValidator(_source_from_text),
]


class DataConfig(Section):
    """What the model is trained, validated and evaluated on."""

    train: Source
    """Rows to train on: a path, or a mapping with `path`, `hub` or `task`."""

    validation: Source | None = None
    """Rows for every choice made while training; null takes some of `train`."""

    holdout: Source | None = None
    """Rows the final evaluation alone reads; null takes some of `train`."""

    columns: ColumnsConfig = ColumnsConfig()
    """Column names, for every source that does not say its own."""

    gold: Gold = GoldConfig()
    """How gold answers are read, for every source that does not say its own: plain, gsm8k, boxed, or a mapping."""

    seed: int = 0
    """Seed of the split; membership depends on it and on a row's question, not on the order of rows."""

    validation_rows: Annotated[int, Field(ge=1)] | None = None
    """Rows taken from `train` for validation when `validation` is null; null uses `validation_share`."""

    validation_share: Annotated[float, Field(gt=0, le=0.5)] = 0.05
    """Share of `train` taken for validation when neither source nor rows are given, at most 1000 rows."""

    holdout_rows: Annotated[int, Field(ge=1)] | None = None
    """Rows taken from `train` for the holdout when `holdout` is null; null uses `holdout_share`."""

    holdout_share: Annotated[float, Field(gt=0, le=0.5)] = 0.1
    """Share of `train` taken for the holdout when neither source nor rows are given, at most 1000 rows."""

    limit: Annotated[int, Field(ge=1)] | None = None
    """Read only the first n rows of every source, for quick tries."""

    max_prompt_tokens: Annotated[int, Field(ge=1)] = 512
    """Longest prompt in tokens, with system message and chat template; longer rows are dropped."""

    max_overlong_share: Share = 0.05
    """Refuse a source when more than this share of its rows is too long."""

    max_broken_share: Share = 0.0
    """Refuse a source when more than this share of its rows is unreadable, lacks a field or has no readable gold
    answer; up to it, such rows are dropped. 0 refuses any."""

    max_duplicate_share: Share = 0.2
    """Refuse a source when more than this share of its rows repeats another's question and answer; up to it, repeats
    are dropped. 0 refuses any."""

    overlap: Literal["refuse", "drop"] = "refuse"
    """When a question of the given validation or holdout is also in train (but for case, punctuation and spaces):
    refuse, or drop the row from train."""

    near_overlap: Literal["refuse", "drop", "keep"] = "drop"
    """When a question of validation or holdout is nearly in train (the same numbers in the same order, and
    `near_overlap_similarity` in common): refuse, drop the row from train, or keep it. Counted in any case."""

    near_overlap_similarity: Annotated[float, Field(ge=0.3, le=1)] = 0.6
    """From which similarity two questions with the same numbers count as near copies: the weighted share of their runs
    of three words that both have, rare runs weighing more."""

    batch_rows: Annotated[int, Field(ge=1, le=65536)] = 2048
    """Rows read, tokenised and written at once; memory grows with it, not with the dataset."""

    @field_validator("train", "validation", "holdout", mode="before")
    @classmethod
    def _not_empty(cls, value: Any) -> Any:
        if value == "":
            raise ValueError("is empty; write a path, or a mapping with path, hub or task")
        return value

    @model_validator(mode="after")
    def _sources_differ(self) -> Self:
        given = [(name, getattr(self, name)) for name in ("train", "validation", "holdout")]
        for index, (name, source) in enumerate(given):
            for other, twin in given[:index]:
                if source is not None and source == twin:
                    raise ValueError(
                        f"{other} and {name} are the same source; give another one, or leave {name} out and let it be "
                        "split from train"
                    )
        for name, own in (("validation", self.validation_rows), ("holdout", self.holdout_rows)):
            if own is not None and getattr(self, name) is not None:
                raise ValueError(f"{name}_rows says how many rows to take from train, but {name} is given; remove one")
        return self

    def sources(self) -> dict[str, FileSource | HubSource | GeneratedSource]:
        """The given sources by the split they feed."""
        given = {"train": self.train, "validation": self.validation, "holdout": self.holdout}
        return {name: source for name, source in given.items() if source is not None}

    def columns_of(self, source: FileSource | HubSource | GeneratedSource) -> ColumnsConfig:
        """Column names that hold for one source; a generated one has question and answer unless it says otherwise."""
        if source.columns is not None:
            return source.columns
        if isinstance(source, GeneratedSource):
            return ColumnsConfig(keep=self.columns.keep)
        return self.columns

    def gold_of(self, source: FileSource | HubSource | GeneratedSource) -> GoldConfig:
        """The gold preset that holds for one source; a generated one is plain unless it says otherwise."""
        if source.gold is not None:
            return source.gold
        return GoldConfig() if isinstance(source, GeneratedSource) else self.gold

    def with_paths_against(self, base: Path) -> Self:
        """The same section with relative file paths made absolute.

        Args:
            base: folder they are relative to (the config file's).
        """
        changed = {
            name: source.model_copy(update={"path": str((base / Path(source.path).expanduser()).resolve())})
            for name, source in self.sources().items()
            if isinstance(source, FileSource) and is_local(source.path)
        }
        return self.model_copy(update=changed)

    def local_files(self) -> list[Path]:
        """Files and folders of this machine that the section names; they travel with a run submitted elsewhere.

        Raises:
            ValueError: when one does not exist, with the nearest name beside it.
        """
        paths = []
        for name, source in self.sources().items():
            if isinstance(source, FileSource) and is_local(source.path):
                path = Path(source.path).expanduser()
                if not path.exists():
                    raise ValueError(f"data.{name}: {describe_missing(path, source.path)}")
                paths.append(path)
        return paths


def is_local(path: str) -> bool:
    """Whether a source's path is on this machine: neither a URI nor an artifact reference."""
    return "://" not in path and "@sha256:" not in path


def describe_missing(path: Path, written: str) -> str:
    """One sentence for a path that is not there: what was looked for, and what may have been meant.

    Args:
        path: where it was looked for.
        written: as the person wrote it.
    """
    if re.fullmatch(r"[\w.-]+/[\w.-]+", written) and not written.endswith((*_SUFFIXES, ".gz")):
        return f"{written} is not a file or folder; if it is a dataset on the hub, write {{hub: {written}}}"
    folder = path.parent
    if not folder.is_dir():
        return (
            f"{path} does not exist, nor does its folder; check the path (relative ones start at the config's folder)"
        )
    near = difflib.get_close_matches(path.name, [entry.name for entry in folder.iterdir()], n=1)
    hint = f"did you mean {near[0]}?" if near else "check the path (relative ones start at the config's folder)"
    return f"{path} does not exist; {hint}"

"""Runs side by side: what differs in their configs, their figures, and the difference of each to the first.

Called by `grpo compare`; drawn by compare_display.py (terminal) and compare_page.py (HTML). Differences of two runs on
the same holdout rows are paired (Newcombe 1998, method 10) where each row's outcome can be read; beyond `MOST_PAIRED`
runs, and where it cannot, the interval is made from the two runs' own (Newcombe 1998b, method 10), which is wider.
Limit: intervals hold for each figure by itself; the best of many runs looks better than it is.
"""

import json
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from components.errors import PipelineError
from components.tracking.runs import flatten
from pipeline.comparing.tracked_runs import Figure, RunReader, TrackedRunView

METRICS: tuple[tuple[str, str, str], ...] = (
    ("format_compliance", "in the format", "candidate_strict"),
    ("accuracy_strict", "in the format and right", "candidate_correct_strict"),
    ("accuracy_lenient", "right, however said", "candidate_correct_lenient"),
    ("truncation_rate", "cut off at the limit", "candidate_truncated"),
)
"""Metric, what a reader calls it, and the column of a run's paired samples it is the mean of."""

MOST_PAIRED = 12
"""Runs whose samples are read; each is a file of some megabytes."""

PAIRS_FILE = "evaluation_pairs.json"
CONFIG_FILE = "config.yaml"
THREADS = 8

_REFERENCE = re.compile(r"[a-z0-9]+://\S*@sha256:([0-9a-f]{64})")
_SET_BY_TRAINING = frozenset({"contract", "lora", "rewards", "stages", "training"})
"""Sections every run has from its first step: a key that one run lacks is a difference there."""
_FROM_CONFIG = ("model", "data", "merge", "evaluation", "gates")
"""Sections read from config.yaml: a parameter in MLflow keeps its first value, and these may change for a run."""
_UNSAID = frozenset({"None", "{}", "[]", "False", ""})
_FIGURES_DEPEND_ON = ("contract.", "evaluation.", "gates.decoding")


@dataclass(frozen=True)
class Setting:
    """A config key that is not the same in all runs.

    Attributes:
        name: such as training.learning_rate.
        values: one a run, None where a run does not have it.
    """

    name: str
    values: tuple[str | None, ...]

    def groups(self) -> list[tuple[str | None, list[int]]]:
        """Each value with the numbers (from 1) of the runs that have it, in the order of the runs."""
        found: dict[str | None, list[int]] = {}
        for number, value in enumerate(self.values, 1):
            found.setdefault(value, []).append(number)
        return list(found.items())


@dataclass(frozen=True)
class Comparison:
    """Runs side by side.

    Attributes:
        runs: as asked for; the first is what the others are compared with.
        settings: what differs in their configs.
        deltas: metric -> one difference to the first a run (None for the first itself and where there is none).
        paired: numbers (from 1) of the runs whose differences are paired.
        notes: what a reader should know.
        samples: rows by run id, where they were read.
    """

    runs: tuple[TrackedRunView, ...]
    settings: tuple[Setting, ...]
    deltas: dict[str, tuple[Figure | None, ...]]
    paired: tuple[int, ...]
    notes: tuple[str, ...]
    samples: dict[str, list[dict[str, Any]]] = field(default_factory=dict)


def compare_runs(reader: RunReader, runs: Sequence[TrackedRunView]) -> Comparison:
    """Compare runs with the first of them.

    Args:
        reader: reads their samples.
        runs: at least one.
    """
    unread: list[str] = []
    samples, params = {}, [run.params for run in runs]
    try:
        params = [run.params | config for run, config in zip(runs, read_configs(reader, runs), strict=True)]
        samples = read_samples(reader, runs) if 1 < len(runs) <= MOST_PAIRED else {}
    except PipelineError as error:
        unread.append(f"Not all is compared: {error}.")
    settings = differing_settings(params)
    first, paired = runs[0], []
    deltas: dict[str, list[Figure | None]] = {metric: [None] for metric, _, _ in METRICS}
    for number, run in enumerate(runs[1:], 2):
        aligned = _align(samples.get(first.run_id), samples.get(run.run_id)) if first.holdout == run.holdout else None
        used = False
        for metric, _, column in METRICS:
            delta = None
            if first.holdout and first.holdout == run.holdout:
                delta = _paired(first.figure(metric), run.figure(metric), aligned, column)
                used = used or delta is not None
                delta = delta or _unpaired(first.figure(metric), run.figure(metric))
            deltas[metric].append(delta)
        if used:
            paired.append(number)
    notes = [*unread, *_notes(runs, settings, paired)]
    tables = {metric: tuple(values) for metric, values in deltas.items()}
    return Comparison(tuple(runs), tuple(settings), tables, tuple(paired), tuple(notes), samples)


def read_configs(reader: RunReader, runs: Sequence[TrackedRunView]) -> list[dict[str, str]]:
    """What the runs' configs say in the sections whose parameters in MLflow may be those of an earlier try, flattened.

    Args:
        reader: reads files of runs.
        runs: the runs; one that was not evaluated left no config, and its entry is empty.
    """
    import yaml

    # The parser in C is ten times as fast; it is not in every build of PyYAML.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

    def read(run: TrackedRunView) -> dict[str, str]:
        text = reader.read_file(run, CONFIG_FILE) if run.holdout else None
        config = yaml.load(text, Loader=loader) if text else None  # noqa: S506 (a SafeLoader)
        if not isinstance(config, dict):
            return {}
        return flatten({name: config[name] for name in _FROM_CONFIG if config.get(name) is not None})

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(read, runs))


def read_samples(reader: RunReader, runs: Sequence[TrackedRunView]) -> dict[str, list[dict[str, Any]]]:
    """Base and candidate on every holdout row, by run id; runs that were not evaluated are left out.

    Args:
        reader: reads files of runs.
        runs: the runs.
    """
    evaluated = [run for run in runs if run.holdout]
    with ThreadPoolExecutor(THREADS) as pool:
        texts = list(pool.map(lambda run: reader.read_file(run, PAIRS_FILE), evaluated))
    return {run.run_id: parse_pairs(text) for run, text in zip(evaluated, texts, strict=True) if text}


def parse_pairs(text: str) -> list[dict[str, Any]]:
    """Rows of a table as pandas writes it with orient="split".

    Args:
        text: JSON.
    """
    table = json.loads(text)
    return [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]


def differing_settings(params: Sequence[Mapping[str, str]]) -> list[Setting]:
    """Keys whose value is not the same in all runs, sorted.

    An artifact counts by its digest and not by where it lies. What only the end of a run writes down counts among the
    runs that have it.

    Args:
        params: flattened config, one a run.
    """
    found = []
    for key in sorted({name for run in params for name in run}):
        if ".stored" in key or key == "run.name":
            continue
        values = tuple(short_references(run[key]) if key in run else None for run in params)
        said = {value for value in values if value is not None}
        missing = None in values and key.partition(".")[0] in _SET_BY_TRAINING and said - _UNSAID
        if len(said) > 1 or missing:
            found.append(Setting(key, values))
    return found


def short_references(text: str) -> str:
    """A text with each artifact's reference cut to the start of its digest.

    Args:
        text: such as a parameter's value.
    """
    return _REFERENCE.sub(lambda match: f"sha256 {match[1][:12]}", text)


def _align(first: list[dict[str, Any]] | None, other: list[dict[str, Any]] | None) -> list[tuple[Any, Any]] | None:
    """Rows of two runs by id; None unless both have the same rows."""
    if not first or not other:
        return None
    by_id = {row["id"]: row for row in other}
    if len(first) != len(by_id) or any(row["id"] not in by_id for row in first):
        return None
    return [(row, by_id[row["id"]]) for row in first]


def _paired(
    first: Figure | None, other: Figure | None, aligned: list[tuple[Any, Any]] | None, column: str
) -> Figure | None:
    """The difference other - first with its paired interval, None where rows do not give the two figures."""
    if first is None or other is None or aligned is None or column not in aligned[0][0]:
        return None
    outcomes = [(bool(one[column]), bool(two[column])) for one, two in aligned]
    n = len(outcomes)
    shares = [sum(outcome[place] for outcome in outcomes) / n for place in (0, 1)]
    if abs(shares[0] - first.value) > 1e-6 or abs(shares[1] - other.value) > 1e-6:
        return None  # several completions a row: the samples kept are the first of each only
    from components.judge_candidate.statistics import newcombe

    both, only_first = outcomes.count((True, True)), outcomes.count((True, False))
    only_other = outcomes.count((False, True))
    low, high = newcombe(both, only_other, only_first, n - both - only_first - only_other)
    return Figure(other.value - first.value, float(low), float(high))


def _unpaired(first: Figure | None, other: Figure | None) -> Figure | None:
    """The difference other - first, its interval from the two intervals by square and add."""
    if first is None or other is None:
        return None
    value = other.value - first.value
    if first.low is None or first.high is None or other.low is None or other.high is None:
        return Figure(value)
    down = ((other.value - other.low) ** 2 + (first.high - first.value) ** 2) ** 0.5
    up = ((other.high - other.value) ** 2 + (first.value - first.low) ** 2) ** 0.5
    return Figure(value, value - down, value + up)


def _notes(runs: Sequence[TrackedRunView], settings: Sequence[Setting], paired: Sequence[int]) -> list[str]:
    """What keeps figures from being compared as they stand."""
    notes = []
    first = runs[0]
    compared = [number for number, run in enumerate(runs[1:], 2) if first.holdout and run.holdout == first.holdout]
    other = [number for number, run in enumerate(runs[1:], 2) if run.holdout and run.holdout != first.holdout]
    silent = [number for number, run in enumerate(runs, 1) if not run.holdout]
    if other and first.holdout:
        notes.append(f"{numbers(other)}: judged on another holdout than run 1, so no difference to it is given.")
    if silent:
        notes.append(f"{numbers(silent)}: not evaluated.")
    unequal = [setting.name for setting in settings if setting.name.startswith(_FIGURES_DEPEND_ON)]
    if unequal:
        notes.append(f"Runs were measured differently ({', '.join(unequal[:4])}): figures differ by that alone.")
    loose = [number for number in compared if number not in paired]
    if paired:
        notes.append(f"{numbers(paired)}: difference to run 1 on the same rows, paired 95 % interval.")
    if loose:
        notes.append(f"{numbers(loose)}: interval of the difference from the two runs' own intervals (wider).")
    if len(runs) > 5:
        notes.append(f"The best of {len(runs)} runs looks better than it is: judge it on rows that chose nothing.")
    return notes


def numbers(places: Sequence[int]) -> str:
    """Run numbers as text, neighbours joined: `runs 2-4, 7`.

    Args:
        places: ascending.
    """
    parts: list[list[int]] = []
    for place in places:
        if parts and place == parts[-1][-1] + 1:
            parts[-1].append(place)
        else:
            parts.append([place])
    texts = [f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts]
    return f"{'runs' if len(places) > 1 else 'run'} {', '.join(texts)}"

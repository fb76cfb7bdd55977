"""The side-by-side page of several runs: one HTML file that needs nothing else.

Called by `grpo compare --html`. Figures with intervals, differences to the first run, what differs in the configs,
curves over each other, the same holdout rows answered by each run. Everything from data is escaped. Curves and samples
are those of the first `MOST_DRAWN` runs: more lines in one chart cannot be told apart.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

from components.errors import BadInputError
from pipeline.comparing.compare import METRICS, THREADS, Comparison, numbers, read_samples
from pipeline.comparing.compare_display import cost, cut, moment, signed
from pipeline.comparing.tracked_runs import Figure, RunReader, TrackedRunView

MOST_DRAWN = 7
MOST_ROWS = 20
SHOWN_CHARACTERS = 3000

CURVES: tuple[tuple[str, str, bool, str], ...] = (
    ("reward", "Total reward", False, "Weighted sum, mean over the batch. Weights may differ between runs."),
    (
        "frac_reward_zero_std",
        "Groups without spread",
        True,
        "Groups that teach nothing; at 100 % nothing is learned.",
    ),
    ("completions/mean_length", "Completion length", False, "Tokens, mean over the batch."),
    ("completions/clipped_ratio", "Cut off at the limit", True, "Completions that hit the limit while training."),
    ("entropy", "Entropy", False, "How undecided the policy is."),
    ("kl", "KL to the reference", False, "Distance from the base model (only when beta > 0)."),
    ("grad_norm", "Gradient norm", False, "Before clipping."),
)
"""Metric, title, whether it is a share, what it says; each reward follows the total."""


def write_page(comparison: Comparison, reader: RunReader, path: Path) -> None:
    """Write the page.

    Args:
        comparison: the runs side by side.
        reader: reads curves, and samples the comparison did not read.
        path: the file.

    Raises:
        BadInputError: when it cannot be written, or what draws the page is not installed.
    """
    try:
        text = render_page(comparison, reader)
    except ModuleNotFoundError as error:
        raise BadInputError(
            f"{error.name} is not installed, and the page is drawn with it: pip install 'grpo-pipeline[registry]'"
        ) from error
    try:
        path.write_text(text, encoding="utf-8", errors="replace")
    except OSError as error:
        raise BadInputError(f"--html {path} cannot be written ({error.strerror}); name another file") from error


def render_page(comparison: Comparison, reader: RunReader) -> str:
    """The page as text.

    Args:
        comparison: the runs side by side.
        reader: reads curves, and samples the comparison did not read.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    from components.register_model.charts import PALETTE

    environment = Environment(
        loader=PackageLoader("pipeline.comparing"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"share": _share, "points": _points}
    drawn = comparison.runs[:MOST_DRAWN]
    samples = comparison.samples or read_samples(reader, drawn)
    return environment.get_template("compare.html.j2").render(
        experiment=reader.tracking.experiment,
        place=reader.tracking.uri,
        today=datetime.now().strftime("%Y-%m-%d %H:%M"),
        runs=[_run(comparison, place, PALETTE) for place in range(len(comparison.runs))],
        notes=comparison.notes,
        settings=_settings(comparison),
        own_columns=len(comparison.runs) <= MOST_DRAWN,
        drawn=len(drawn),
        curves=draw_curves(reader, drawn),
        rows=choose_rows(drawn, samples),
    )


def draw_curves(reader: RunReader, runs: Sequence[TrackedRunView]) -> list[dict[str, str]]:
    """Charts with one line a run; a metric that no run has is left out.

    Args:
        reader: reads the curves.
        runs: at most as many as there are colours.
    """
    from components.register_model.charts import curve_chart

    rewards = sorted(
        {name for run in runs for name in run.metrics if name.startswith("rewards/") and name.endswith("/mean")}
    )
    each = [(name, f"Reward {name.split('/')[1]}", False, "Mean over the batch, unweighted.") for name in rewards]
    wanted = [CURVES[0], *each, *CURVES[1:]]
    asked = [(metric, run) for metric, _, _, _ in wanted for run in runs if metric in run.metrics]
    with ThreadPoolExecutor(THREADS) as pool:
        found = dict(
            zip(
                [(metric, run.run_id) for metric, run in asked],
                pool.map(lambda entry: reader.curve(entry[1], entry[0]), asked),
                strict=True,
            )
        )
    charts = []
    for metric, title, share, note in wanted:
        # A run without the metric keeps its place, so that a run has one colour on the whole page.
        series = {f"run {number}": found.get((metric, run.run_id), []) for number, run in enumerate(runs, 1)}
        if any(series.values()):
            svg = curve_chart(series, title=f"{title} of each run over training steps", share=share, legend=False)
            charts.append({"title": title, "note": note, "svg": svg})
    return charts


def choose_rows(
    runs: Sequence[TrackedRunView], samples: dict[str, list[dict[str, Any]]], most: int = MOST_ROWS
) -> list[dict[str, Any]]:
    """Holdout rows to show, each with every run's answer: those the runs disagree on come first.

    Args:
        runs: the runs; those of another holdout than the first evaluated one are left out.
        samples: rows by run id.
        most: rows to show.
    """
    evaluated = [(number, run) for number, run in enumerate(runs, 1) if samples.get(run.run_id)]
    if not evaluated:
        return []
    holdout = evaluated[0][1].holdout
    same = [(number, run) for number, run in evaluated if run.holdout == holdout]
    tables = [(number, {row["id"]: row for row in samples[run.run_id]}) for number, run in same]
    ids = [row["id"] for row in samples[same[0][1].run_id] if all(row["id"] in table for _, table in tables)]

    def rank(identity: str) -> int:
        rows = [table[identity] for _, table in tables]
        if len({bool(row["candidate_correct_strict"]) for row in rows}) > 1:
            return 0
        if len({bool(row["candidate_correct_lenient"]) for row in rows}) > 1:
            return 1
        if not rows[0]["candidate_correct_strict"]:
            return 2
        return 3 if len({row["candidate_completion"] for row in rows}) > 1 else 4

    labels = ("runs disagree", "runs disagree", "all wrong", "all right", "all right")
    chosen = []
    for identity in sorted(ids, key=rank)[:most]:
        first = tables[0][1][identity]
        answers = [{"number": number, **_answer(table[identity])} for number, table in tables]
        chosen.append(
            {
                "label": labels[rank(identity)],
                "question": str(first["question"]),
                "gold": str(first["gold"]),
                "answers": answers,
            }
        )
    return chosen


def _answer(row: dict[str, Any]) -> dict[str, Any]:
    """What one run said, and how it was judged."""
    judged = "right" if row["candidate_correct_lenient"] else "wrong"
    reasons = ", ".join(row["candidate_reasons"] or []).replace("_", " ")
    form = "in the format" if row["candidate_strict"] else f"not in the format: {reasons}"
    end = ", cut off" if row["candidate_truncated"] else ""
    text = str(row["candidate_completion"])
    return {
        "right": bool(row["candidate_correct_lenient"]),
        "judged": f"{judged}, {form}, {row['candidate_tokens']} tokens{end}",
        "text": text[:SHOWN_CHARACTERS] + (" […]" if len(text) > SHOWN_CHARACTERS else ""),
    }


def _run(comparison: Comparison, place: int, palette: Sequence[str]) -> dict[str, Any]:
    run = comparison.runs[place]
    return {
        "number": place + 1,
        "name": run.name,
        "id": run.run_id,
        "short": run.short,
        "started": moment(run.started),
        "verdict": run.verdict or run.status.lower(),
        "cost": cost(run),
        "colour": palette[place] if place < min(MOST_DRAWN, len(palette)) else "",
        "figures": [
            {
                "label": label,
                "figure": run.figure(metric),
                "base": run.figure(metric, "base"),
                "delta": comparison.deltas[metric][place],
                "worse_up": metric == "truncation_rate",
            }
            for metric, label, _ in METRICS
        ],
    }


def _settings(comparison: Comparison) -> list[dict[str, Any]]:
    return [
        {
            "name": setting.name,
            "values": [cut(value, 300) for value in setting.values],
            "groups": [(cut(value, 300), numbers(places)) for value, places in setting.groups()],
        }
        for setting in comparison.settings
    ]


def _share(figure: Figure | None) -> str:
    return "–" if figure is None else f"{100 * figure.value:.1f} %"


def _points(figure: Figure) -> str:
    ends = "" if figure.low is None or figure.high is None else f" [{signed(figure.low)}, {signed(figure.high)}]"
    return f"{signed(figure.value)}{ends}".replace("-", "−")

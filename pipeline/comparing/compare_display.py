"""Tables of runs on a terminal: the list, one run, several side by side. Draws; decides nothing.

Called by `grpo runs`, `grpo show` and `grpo compare`. Fits 80 columns; where there is no terminal (a pipe, a file) and
COLUMNS says nothing the width is `PLAIN_WIDTH`.
"""

import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pipeline.comparing.compare import METRICS, Comparison, numbers, short_references
from pipeline.comparing.tracked_runs import Figure, TrackedRunView

PLAIN_WIDTH = 140
SHOWN_METRICS = METRICS[:3]
MOST_COLUMNS = 5
"""Runs that get a column of their own in the table of settings; more are grouped by value."""

_STYLES = {
    "pass": "green",
    "fail": "red",
    "inconclusive": "yellow",
    "failed": "red",
    "running": "cyan",
    "FAILED": "red",
    "RUNNING": "cyan",
}


def make_console() -> Console:
    """A console that is wide enough where nobody says how wide it is."""
    console = Console(highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console = Console(highlight=False, width=PLAIN_WIDTH)
    return console


def print_runs(console: Console, runs: Sequence[TrackedRunView], place: str) -> None:
    """One line a run.

    Args:
        console: where to print.
        runs: newest first.
        place: where they were read from.
    """
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=place, title_justify="left", title_style="dim")
    for heading in ("id", "name", "started", "state"):
        table.add_column(heading, no_wrap=heading != "name", overflow="fold")
    for heading in ("format", "right", "took"):
        table.add_column(heading, justify="right", no_wrap=True)
    for run in runs:
        table.add_row(
            run.short,
            escape(run.name),
            moment(run.started),
            styled(run.verdict or run.status.lower()),
            share(run.figure("format_compliance"), interval=False),
            share(run.figure("accuracy_lenient"), interval=False),
            duration(run.seconds),
        )
    console.print(table)


def print_run(
    console: Console, run: TrackedRunView, *, verdict: Mapping[str, Any] | None, holdout: str, places: Mapping[str, str]
) -> None:
    """Everything worth a screen about one run.

    Args:
        console: where to print.
        run: the run.
        verdict: verdict.json, None where it was not judged.
        holdout: how often its holdout was used, as a sentence; may be empty.
        places: label -> where a thing is.
    """
    console.print(f"[bold]{escape(run.name)}[/]  {run.run_id}  {styled(run.status)}")
    console.print(
        f"[dim]started {moment(run.started)}" + (f", ended {moment(run.ended)}" if run.ended else "") + "[/]\n"
    )
    if run.holdout:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for heading in ("", "base", "candidate", "difference, points"):
            table.add_column(heading, justify="right" if heading else "left", no_wrap=bool(heading))
        joint = "\n" if console.width < 98 else " "
        for metric, label, _ in METRICS:
            base, candidate, delta = (run.figure(metric, side) for side in ("base", "candidate", "delta"))
            table.add_row(label, share(base, joint), share(candidate, joint), points(delta, joint))
        console.print(table)
    console.print(f"verdict   {styled(run.verdict)}" if run.verdict else "verdict   not judged")
    for gate in (verdict or {}).get("gates", []):
        console.print(f"          {styled(gate['status'])} {escape(gate['sentence'])}", soft_wrap=True)
    if holdout:
        console.print(f"holdout   {escape(holdout)}", soft_wrap=True)
    console.print(f"cost      {cost(run) or 'not measured'}", soft_wrap=True)
    params = run.params
    for label, keys in (
        ("model", ("model.source", "model.revision")),
        ("data", ("data.train.path", "data.train.hub", "data.train.task", "dataset")),
        ("training", ("training.learning_rate", "training.num_generations", "training.max_steps", "run.seed")),
    ):
        said = [
            f"{key.rpartition('.')[2]} {short_references(params[key])}"
            for key in keys
            if params.get(key, "None") != "None"
        ]
        if said:
            console.print(f"{label:<9} {escape(', '.join(said))}", soft_wrap=True)
    versions = [f"{tag.removeprefix('version.')} {run.tags[tag]}" for tag in sorted(run.tags) if "version." in tag]
    if versions:
        console.print(f"versions  {escape(', '.join(versions))}", soft_wrap=True)
    for label, place in places.items():
        console.print(f"{label:<9} {escape(place)}", soft_wrap=True)


def print_comparison(console: Console, comparison: Comparison) -> None:
    """The figures of each run with its difference to the first, then what differs in their configs.

    Args:
        console: where to print.
        comparison: the runs side by side.
    """
    narrow = console.width < 122
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_lines=False)
    table.add_column("#")
    table.add_column("run", overflow="fold")
    for _, label, _ in SHOWN_METRICS:
        heading = label.replace(" and", "\nand").replace(", ", ",\n") if narrow else label
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("cost", justify="right")
    joint = "\n" if narrow else " "
    for number, run in enumerate(comparison.runs, 1):
        cells = []
        for metric, _, _ in SHOWN_METRICS:
            delta = comparison.deltas[metric][number - 1]
            text = share(run.figure(metric), joint)
            cells.append(f"{text}\n[dim]{points(delta, joint)}[/]" if delta else text)
        table.add_row(
            str(number),
            f"{escape(run.name)}\n[dim]{run.short}[/]{joint}{styled(run.verdict or run.status.lower())}",
            *cells,
            cost(run, "\n"),
            end_section=number < len(comparison.runs) and len(comparison.runs) < 9,
        )
    console.print(table)
    if len(comparison.runs) > 1:
        console.print("[dim]shares with 95 % intervals; second line: points more or less than run 1[/]", soft_wrap=True)
    for note in comparison.notes:
        console.print(escape(note), soft_wrap=True)
    print_settings(console, comparison)


def print_settings(console: Console, comparison: Comparison) -> None:
    """What differs in the configs: a column a run, or each value with its runs where there are many.

    Args:
        console: where to print.
        comparison: the runs side by side.
    """
    if len(comparison.runs) < 2:
        return
    if not comparison.settings:
        console.print("\nThe configs are the same.")
        return
    console.print("\nWhat differs in the configs:")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, min_width=28)
    table.add_column("key", overflow="fold", min_width=24)
    if len(comparison.runs) <= MOST_COLUMNS and console.width >= 34 + 20 * len(comparison.runs):
        for number in range(1, len(comparison.runs) + 1):
            table.add_column(f"run {number}", overflow="fold")
        for setting in comparison.settings:
            table.add_row(setting.name, *(escape(cut(value)) for value in setting.values))
    else:
        table.add_column("values", overflow="fold")
        for setting in comparison.settings:
            groups = setting.groups()
            shown = [f"{escape(cut(value, 60))} [dim]({numbers(places)})[/]" for value, places in groups[:8]]
            more = [f"[dim]and {len(groups) - 8} values more[/]"] if len(groups) > 8 else []
            table.add_row(setting.name, "\n".join([*shown, *more]))
    console.print(table)


def share(figure: Figure | None, joint: str = " ", *, interval: bool = True) -> str:
    """A share as text, with its interval.

    Args:
        figure: the figure; None is a dash.
        joint: between value and interval.
        interval: whether to say it.
    """
    if figure is None:
        return "-"
    text = f"{100 * figure.value:.1f} %"
    if not interval or figure.low is None or figure.high is None:
        return text
    return f"{text}{joint}\\[{100 * figure.low:.1f}, {100 * figure.high:.1f}]"


def points(figure: Figure | None, joint: str = " ") -> str:
    """A difference of shares in points, with its interval.

    Args:
        figure: the figure; None is a dash.
        joint: between value and interval.
    """
    if figure is None:
        return "-"
    text = signed(figure.value)
    if figure.low is None or figure.high is None:
        return text
    return f"{text}{joint}\\[{signed(figure.low)}, {signed(figure.high)}]"


def signed(value: float) -> str:
    """A difference of shares in points with its sign; nothing is not minus nothing."""
    rounded = round(100 * value, 1)
    return f"{rounded + 0.0:+.1f}" if rounded else "0.0"


def cost(run: TrackedRunView, joint: str = ", ") -> str:
    """What the training cost: GPU-hours where there was a GPU, else its time; tokens.

    Args:
        run: the run.
        joint: between the two.
    """
    parts = [f"{run.gpu_hours:.2f} GPU-h"] if run.gpu_hours else [duration(run.seconds)] if run.seconds else []
    if run.tokens:
        parts.append(f"{run.tokens / 1e6:.1f} M tokens" if run.tokens >= 1e6 else f"{run.tokens / 1e3:.0f} k tokens")
    return joint.join(parts)


def duration(seconds: float | None) -> str:
    """Seconds as a person says them."""
    if seconds is None:
        return "-"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def moment(milliseconds: int) -> str:
    """A time of MLflow's, local."""
    return datetime.fromtimestamp(milliseconds / 1000).strftime("%Y-%m-%d %H:%M")


def cut(value: str | None, most: int = 80) -> str:
    """A value short enough for a cell; a dash for none."""
    if value is None:
        return "-"
    text = value.replace("\n", " ")
    return text if len(text) <= most else f"{text[: most - 1]}…"


def styled(word: str) -> str:
    """A state or verdict in its colour."""
    style = _STYLES.get(word.lower())
    return f"[{style}]{escape(word)}[/]" if style else escape(word)

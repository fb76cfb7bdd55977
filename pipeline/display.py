"""What a person sees while a run goes on and when it has ended. Draws; decides nothing.

On a terminal: a table of steps with state and time, and a bar with figures and the time left for the step that works.
Elsewhere (a file, CI): one line when a step starts, ends, or has got a quarter further.
"""

import shlex
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from components.errors import ExitCode
from components.tracking.config import TrackingConfig
from pipeline.config import absolute_tracking
from pipeline.runners import Event, Outcome

STEPS: tuple[tuple[str, str], ...] = (
    ("import_model", "import model"),
    ("prepare_dataset", "prepare dataset"),
    ("smoke_test_rewards", "smoke test rewards"),
    ("train_grpo", "train"),
    ("merge_lora", "merge"),
    ("evaluate_holdout", "evaluate base and candidate"),
    ("judge_candidate", "judge"),
    ("register_model", "register"),
)

SWEEP_STEPS = (*STEPS[:4], ("choose_winner", "choose winner"), *STEPS[4:])
"""Steps of a sweep; training runs once a point."""

SHOWN_METRICS = (
    ("format_compliance", "format compliance (strict)"),
    ("accuracy_strict", "accuracy, in the format and right"),
    ("accuracy_lenient", "accuracy, right however it is said"),
)
"""Rows of the closing table. The second mixes format and knowledge; the third shows what was known all along."""

SAMPLE_CHARACTERS = 100
"""How much of a sampled completion is shown."""

SYMBOLS = {
    "waiting": "[dim]·[/]",
    "running": "[cyan]▶[/]",
    "done": "[green]✓[/]",
    "reused": "[green]↺[/]",
    "failed": "[red]✗[/]",
}


class RunDisplay:
    """Follows the events of one run.

    Args:
        console: where to draw.
        steps: the steps of this kind of run, name and label.
    """

    def __init__(self, console: Console, steps: tuple[tuple[str, str], ...] = STEPS) -> None:
        self._console = console
        self._steps = steps
        self._states = {name: "waiting" for name, _ in steps}
        self._started: dict[str, float] = {}
        self._seconds: dict[str, float] = {}
        self._progress: dict[str, Event] = {}
        self._quarter: dict[str, int] = {}
        self._phase: dict[str, float] = {}
        self._subject: dict[str, str] = {}
        self._live = (
            Live(console=console, refresh_per_second=4, get_renderable=self._table) if console.is_terminal else None
        )

    def __enter__(self) -> "RunDisplay":
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.update(self._table(), refresh=True)
            self._live.stop()

    def on_event(self, event: Event) -> None:
        """Take in one event.

        Args:
            event: as components.steps wrote it.
        """
        step, kind = event["step"], event["event"]
        if step not in self._states:
            return
        if kind == "started":
            self._mark_reused(before=step)
            self._states[step] = "running"
            self._started[step] = event["time"]
            for kept in (self._progress, self._quarter, self._phase, self._subject):
                kept.pop(step, None)
            if step != "evaluate_holdout":
                self._line(f"▶ {self._label(step)}")
        elif kind == "subject":
            self._subject[step] = event["subject"]
            self._line(f"▶ {self._label(step)}")
        elif kind == "progress":
            self._enter_phase(step, event)
            self._progress[step] = event
            self._line_for_progress(step, event)
        elif kind == "note":
            self._console.print(Text(f"  {self._label(step)}: {event['message']}", style="yellow"))
        elif kind == "leaderboard":
            self._console.print(leader_board(event))
        elif kind == "samples":
            for line in sample_lines(event):
                self._console.print(Text(line, style="dim"), no_wrap=True, overflow="ellipsis")
        elif kind in ("finished", "failed"):
            self._states[step] = "done" if kind == "finished" else "failed"
            self._seconds[step] = self._seconds.get(step, 0.0) + event["time"] - self._started[step]
            took = event["time"] - self._started[step]
            self._line(f"{'✓' if kind == 'finished' else '✗'} {self._label(step)} ({took:.1f} s)")

    def conclude(self, outcome: Outcome) -> None:
        """Mark the steps that never ran in a run that got past them.

        Args:
            outcome: how the run ended.
        """
        if outcome.exit_code is ExitCode.PASSED or outcome.summary:
            self._mark_reused(before=None)
        elif outcome.ran:
            self._mark_reused(before=outcome.ran[-1])

    def reused(self) -> list[str]:
        """Labels of the steps answered from the cache."""
        return [label for name, label in self._steps if self._states[name] == "reused"]

    def _mark_reused(self, before: str | None) -> None:
        names = [name for name, _ in self._steps]
        # evaluate_holdout(base) may run before or beside training: it says nothing about the steps between.
        limit = names.index(before) if before else len(names)
        if before == "evaluate_holdout":
            limit = names.index("smoke_test_rewards")
        for name in names[:limit]:
            if self._states[name] == "waiting":
                self._states[name] = "reused"
                self._line(f"↺ {_label(name)} (reused: nothing it depends on has changed)")

    def _table(self) -> RenderableType:
        table = Table.grid(padding=(0, 2))
        now = time.time()
        for name, label in self._steps:
            state = self._states[name]
            seconds = self._seconds.get(name)
            if state == "running":
                seconds = (seconds or 0.0) + now - self._started[name]
            shown = "reused" if state == "reused" else f"{seconds:6.1f} s" if seconds is not None else ""
            table.add_row(
                SYMBOLS[state],
                self._label(name) if state == "running" else label,
                Text(shown, style="dim"),
                self._bar(name) if state == "running" else "",
            )
        return Group(table)

    def _bar(self, step: str) -> RenderableType:
        event = self._progress.get(step)
        if event is None or not event["total"]:
            return ""
        grid = Table.grid(padding=(0, 1))
        grid.add_row(
            ProgressBar(total=event["total"], completed=event["done"], width=24),
            Text(_progress_text(event, self._phase[step])),
        )
        return grid

    def _line(self, text: str) -> None:
        if not self._live:
            self._console.print(text, highlight=False)

    def _line_for_progress(self, step: str, event: Event) -> None:
        quarter = 4 * event["done"] // event["total"] if event["total"] else 0
        if not self._live and quarter != self._quarter.get(step, 0):
            self._quarter[step] = quarter
            self._line(f"  {self._label(step)}: {_progress_text(event, self._phase[step])}")

    def _enter_phase(self, step: str, event: Event) -> None:
        """Begin a clock of its own for each thing a step counts: the time left is that of the present count."""
        before = self._progress.get(step)
        if before is None:
            self._phase[step] = self._started.get(step, float(event["time"]))
        elif before["unit"] != event["unit"] or event["done"] < before["done"]:
            self._phase[step] = float(before["time"])
            self._quarter.pop(step, None)

    def _label(self, step: str) -> str:
        """A step's name for people, with what it works on where it runs more than once."""
        subject = self._subject.get(step)
        return f"evaluate {subject}" if subject else _label(step)


def leader_board(event: Event) -> Table:
    """The trainings of a sweep, best first.

    Args:
        event: `leaderboard`, as choose_winner reports it.
    """
    table = Table(title="sweep, by validation rows", title_justify="left")
    for heading in ("", "point", "accuracy", "compliance", "step", "time"):
        table.add_column(heading, justify="left" if heading in ("", "point") else "right")
    for place, row in enumerate(event["rows"], start=1):
        if row["accuracy"] is None:
            table.add_row(str(place), Text(row["label"]), "stopped", "", "", "")
        else:
            figures = (f"{100 * row['accuracy']:.1f} %", f"{100 * row['compliance']:.1f} %")
            table.add_row(str(place), Text(row["label"]), *figures, str(row["step"]), f"{row['seconds']:.0f} s")
    return table


def sample_lines(event: Event) -> list[str]:
    """Sampled completions as a few short lines.

    Args:
        event: `samples`, as the training step reports it.
    """
    lines = [f"  samples at step {event['at']}: reward, advantage, completion, why it is not in the format"]
    for row in event["rows"]:
        text = " ".join(str(row["completion"]).split())
        shown = text if len(text) <= SAMPLE_CHARACTERS else f"{text[: SAMPLE_CHARACTERS - 1]}…"
        reward = "  none" if row["reward"] is None else f"{row['reward']:6.2f}"
        reasons = f"  [{row['reasons']}]" if row["reasons"] else ""
        lines.append(f"    {reward} {row['advantage']:+6.2f}  {shown}{reasons}")
    return lines


def _label(step: str) -> str:
    return dict(SWEEP_STEPS).get(step, step)


def _progress_text(event: Event, started: float) -> str:
    """`12/60 steps  reward 1.23  0:40 left`."""
    done, total = event["done"], event["total"]
    figures = "".join(f"  {name} {value:.3g}" for name, value in event["figures"].items())
    left = ""
    if 0 < done < total:
        seconds = (event["time"] - started) / done * (total - done)
        left = f"  about {int(seconds) // 60}:{int(seconds) % 60:02d} left"
    unit = event["unit"] if event["unit"].endswith("s") else f"{event['unit']}s"
    return f"{done:,}/{total:,} {unit}{figures}{left}"


def print_outcome(console: Console, outcome: Outcome, reused: list[str], command: str) -> None:
    """The closing table, the verdict and what to do next.

    Args:
        console: where to print.
        outcome: how the run ended.
        reused: labels of reused steps.
        command: the command that goes on or repeats.
    """
    if reused:
        console.print(f"\nreused: {', '.join(reused)}", highlight=False)
    if outcome.summary:
        _print_summary(console, outcome.summary)
    if outcome.exit_code is ExitCode.PASSED:
        return
    style = "yellow" if outcome.exit_code is ExitCode.RESUMABLE else "red"
    word = {
        ExitCode.BAD_INPUT: "refused",
        ExitCode.GATE_FAILED: "gate failed",
        ExitCode.RESUMABLE: "stopped",
    }.get(outcome.exit_code, "failed")
    place = f" in {outcome.failed_step}" if outcome.failed_step else ""
    console.print(Text(f"\n{word}{place}: {outcome.message}", style=style))
    if outcome.log.exists():
        console.print(f"log      {outcome.log}", highlight=False, soft_wrap=True)
    if outcome.exit_code is ExitCode.RESUMABLE:
        console.print(f"go on    {command}", highlight=False, soft_wrap=True)


def _print_summary(console: Console, summary: Mapping[str, Any]) -> None:
    table = Table(title=f"holdout, {summary['rows']} rows, 95 % intervals", title_justify="left")
    for heading in ("", "base", "candidate", "difference"):
        table.add_column(heading, justify="left" if not heading else "right")
    for name, label in SHOWN_METRICS:
        figures = summary["metrics"].get(name)
        if figures:
            delta = figures.get("delta")
            table.add_row(
                label,
                _share(figures["base"]),
                _share(figures["candidate"]),
                _points(delta) if delta else "",
            )
    console.print()
    console.print(table)
    style = {"pass": "green", "fail": "red"}.get(summary["verdict"], "yellow")
    console.print(Text.assemble("verdict  ", (summary["verdict"], style)))
    for sentence in summary["gates"]:
        console.print(f"         {sentence}", highlight=False, soft_wrap=True)
    console.print(f"version  {summary['version'] or 'nothing registered'}", highlight=False)
    for label, value in summary["places"].items():
        console.print(f"{label:<8} {value}", highlight=False, soft_wrap=True)
    for line in next_commands(summary):
        console.print(f"next     {line}", highlight=False, soft_wrap=True)


def next_commands(summary: Mapping[str, Any]) -> list[str]:
    """What a person may want to do with the result, ready to be pasted.

    Args:
        summary: what register_model reported.
    """
    uri = summary["tracking_uri"]
    place = "" if uri == absolute_tracking(TrackingConfig().uri) else f" --tracking-uri {shlex.quote(uri)}"
    commands = [f"grpo show {summary['run_id'][:8]}{place}", f"grpo compare{place}"]
    if summary["version"]:
        commands.append(f"grpo promote {shlex.quote(summary['version'])}{place}")
    if uri.startswith("sqlite:///"):
        commands.append(f"mlflow ui --backend-store-uri {shlex.quote(uri)}")
    return commands


def _share(figure: Mapping[str, float]) -> str:
    return f"{100 * figure['value']:.1f} % [{100 * figure['low']:.1f}, {100 * figure['high']:.1f}]"


def _points(figure: Mapping[str, float]) -> str:
    return f"{100 * figure['value']:+.1f} [{100 * figure['low']:+.1f}, {100 * figure['high']:+.1f}]"

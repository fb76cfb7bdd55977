"""The report's charts as inline SVG: curves over training steps, shares before and after, failure reasons.

Called by report.py. Drawn by matplotlib without a display. Text stays text (it can be searched and is sharp in print),
colours are told apart by people who see no red or green, and a chart is as wide as a phone so that nothing shrinks.
"""

import io
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

BASE = "#8a8f98"
CANDIDATE = "#0b6bcb"
PALETTE = ("#0b6bcb", "#d9730d", "#3f8f5b", "#8f4fb8", "#4b5563", "#c2416b", "#b8860b")
INK, MUTED, GRID = "#1f2933", "#5f6b7a", "#e4e8ed"

_STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "report",
    "font.family": "sans-serif",
    "font.size": 9.0,
    "axes.edgecolor": GRID,
    "axes.labelcolor": MUTED,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "path.simplify_threshold": 0.5,
}

Points = Sequence[tuple[float, float]]


def curve_chart(
    series: Mapping[str, Points],
    *,
    title: str,
    share: bool = False,
    boundaries: Sequence[float] = (),
    legend: bool = True,
) -> str:
    """Lines over training steps, each with its moving average in front of the raw values.

    Args:
        series: name -> (step, value) points.
        title: what the chart says to a screen reader.
        share: whether values are shares, drawn as per cent from 0 to 100.
        boundaries: steps at which another stage of the training begins.
        legend: whether several lines are named in the chart (a page may name them once for all its charts).

    Returns:
        An `<svg>` element.
    """
    with rc_context(_STYLE):
        figure = Figure(figsize=(4.4, 2.5))
        axes = figure.add_subplot()
        for place, (name, points) in enumerate(series.items()):
            steps, values = [point[0] for point in points], [point[1] for point in points]
            colour = PALETTE[place % len(PALETTE)]
            smooth = moving_average(values)
            if len(values) >= 10:
                axes.plot(steps, values, color=colour, linewidth=0.7, alpha=0.28)
                axes.plot(steps, smooth, color=colour, linewidth=1.8, label=name)
            else:
                axes.plot(steps, values, color=colour, linewidth=1.8, marker="o", markersize=3, label=name)
        for step in boundaries:
            axes.axvline(step, color=MUTED, linewidth=0.8, linestyle=(0, (3, 3)))
        _dress(axes)
        axes.set_xlabel("step")
        axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
        if share:
            axes.set_ylim(-0.03, 1.03)
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _place: f"{value * 100:.0f} %"))
        else:
            axes.yaxis.set_major_locator(MaxNLocator(nbins=5))
        if legend and len(series) > 1:
            axes.legend(
                loc="lower left", bbox_to_anchor=(-0.02, 1.0), ncols=2, frameon=False, fontsize=8.5, handlelength=1.2
            )
        return _svg(figure, title)


def interval_chart(rows: Sequence[tuple[str, Mapping[str, Any], Mapping[str, Any]]], *, title: str) -> str:
    """Shares before and after as points with their intervals, each row's label above it.

    Args:
        rows: (label, base figure, candidate figure); figures hold value, low, high.
        title: what the chart says to a screen reader.

    Returns:
        An `<svg>` element.
    """
    with rc_context(_STYLE):
        figure = Figure(figsize=(4.6, 0.62 * len(rows) + 0.6))
        axes = figure.add_subplot()
        for place, (label, base, candidate) in enumerate(rows):
            axes.text(0, place - 0.3, label, fontsize=9, va="center")
            axes.plot([base["value"], candidate["value"]], [place + 0.11] * 2, color=GRID, linewidth=5, zorder=1)
            for offset, entry, colour in ((0.0, base, BASE), (0.22, candidate, CANDIDATE)):
                if entry.get("low") is not None:
                    axes.plot([entry["low"], entry["high"]], [place + offset] * 2, color=colour, linewidth=2, zorder=2)
                axes.plot(entry["value"], place + offset, "o", color=colour, markersize=6, zorder=3)
        axes.plot([], [], "o-", color=BASE, label="base")
        axes.plot([], [], "o-", color=CANDIDATE, label="candidate")
        _dress_rows(axes, len(rows))
        axes.set_xlim(-0.02, 1.02)
        return _svg(figure, title)


def bar_chart(rows: Sequence[tuple[str, float, float]], *, title: str) -> str:
    """Two shares a label as horizontal bars, the label above them.

    Args:
        rows: (label, base share, candidate share).
        title: what the chart says to a screen reader.

    Returns:
        An `<svg>` element.
    """
    with rc_context(_STYLE):
        figure = Figure(figsize=(4.6, 0.62 * len(rows) + 0.6))
        axes = figure.add_subplot()
        most = max((max(base, candidate) for _label, base, candidate in rows), default=1.0) or 1.0
        for place, (label, base, candidate) in enumerate(rows):
            axes.text(0, place - 0.3, label, fontsize=9, va="center")
            for offset, value, colour in ((0.0, base, BASE), (0.22, candidate, CANDIDATE)):
                axes.barh(place + offset, value, height=0.2, color=colour)
                axes.text(value + most * 0.015, place + offset, f"{value * 100:.1f} %", va="center", fontsize=8)
        axes.barh(0, 0, color=BASE, label="base")
        axes.barh(0, 0, color=CANDIDATE, label="candidate")
        _dress_rows(axes, len(rows))
        axes.set_xlim(0, most * 1.17)
        return _svg(figure, title)


def moving_average(values: Sequence[float], share: float = 0.08) -> list[float]:
    """Moving average over a share of the curve, one-sided towards its ends (so that they do not end in noise).

    Args:
        values: the curve.
        share: width as a share of its length.
    """
    half = max(1, round(len(values) * share / 2))
    windows = [values[max(0, place - half) : place + half + 1] for place in range(len(values))]
    return [sum(window) / len(window) for window in windows]


def _dress(axes: Axes, grid: Literal["x", "y"] = "y") -> None:
    axes.grid(axis=grid, color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(length=0)


def _dress_rows(axes: Axes, rows: int) -> None:
    """A chart of labelled rows over an axis of shares."""
    axes.legend(loc="lower left", bbox_to_anchor=(-0.02, 1.0), ncols=2, frameon=False, fontsize=9)
    _dress(axes, grid="x")
    axes.set_ylim(rows - 0.55, -0.6)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _place: f"{value * 100:g} %"))


def _svg(figure: Figure, title: str) -> str:
    """The figure as an element that fills its place, with a title for screen readers."""
    buffer = io.StringIO()
    figure.savefig(
        buffer, format="svg", bbox_inches="tight", pad_inches=0.04, metadata={"Date": None}, transparent=True
    )
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    width = re.search(r'width="([\d.]+)pt"', text)
    natural = f"{float(width[1]) * 4 / 3:.0f}px" if width else "100%"
    text = re.sub(r' (width|height)="[\d.]+pt"', "", text, count=2)
    text = text.replace("<svg", f'<svg role="img" aria-label="{_plain(title)}" style="max-width:{natural}"', 1)
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    # The page's own font, so that charts and text look alike.
    return re.sub(r"font: ([\d.]+)px [^;\"]+", r"font: \1px var(--font)", text)


def _plain(text: str) -> str:
    return text.replace("&", "and").replace('"', "'").replace("<", "").replace(">", "")

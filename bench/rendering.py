"""Writes README.md and the plots from the JSON in results/. Called by __main__.py; `python -m bench --render` alone.

Every figure on the page comes from a results file; what is said about a row (work, peer, ask, limits) from its module.
Rows without results are listed as not measured. Equal results give equal bytes, so that a test can hold page and
results together.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bench.rows import ROWS
from bench.session import Plot, Row

COLUMNS = {
    "wall_s": "wall, s",
    "cpu_s": "CPU, s",
    "rss_mib": "peak, MiB",
    "imports_s": "imports, s",
    "start_up_s": "imports, s",
    "rest_s": "wall without imports, s",
    "train_s": "training loop, s",
    "train_cpu_s": "training loop, CPU s",
    "generate_s": "generation, s",
    "generation_s": "of it generating, s",
    "update_s": "updating, s",
    "rewards_s": "rewards, s",
    "tokens_per_s": "tokens/s",
    "completions_per_s": "completions/s",
    "completions_per_cpu_s": "completions/CPU s",
    "compile_s": "compile, s",
    "load": "load before",
}
"""Figures shown in tables, in this order, and what they are called."""


def render(results: Path, folder: Path) -> None:
    """Write the page and its plots.

    Args:
        results: folder of the JSON files.
        folder: where README.md and plots/ go.
    """
    found = {
        name: json.loads((results / f"{name}.json").read_text(encoding="utf-8"))
        for name in ROWS
        if (results / f"{name}.json").exists()
    }
    plots = folder / "plots"
    plots.mkdir(exist_ok=True)
    drawn: dict[str, list[str]] = {}
    for name, data in found.items():
        for number, plot in enumerate(ROWS[name].plots):
            path = plots / f"{name}-{number + 1}.svg"
            if draw(plot, data["cases"], path):
                drawn.setdefault(name, []).append(f"![{plot.title}](plots/{path.name})")
    (folder / "README.md").write_text(page(found, drawn), encoding="utf-8")


def page(found: dict[str, dict[str, Any]], drawn: dict[str, list[str]]) -> str:
    """The page's text.

    Args:
        found: results by row name.
        drawn: image links by row name.
    """
    parts = [HEAD, "| row | work | instead of | asked | found | |", "|---|---|---|---|---|---|"]
    for name, row in ROWS.items():
        parts.append(f"| [{name}](#{name}) | {row.work} | {row.peer} | {row.ask} | {summary(found.get(name), row)} |")
    for name, row in ROWS.items():
        parts.append(f"\n## {name}\n")
        if name in found:
            parts += section(row, found[name])
            parts += ["", *drawn.get(name, [])] if drawn.get(name) else []
        else:
            parts.append(f"{row.work}. Not measured yet" + ("; needs a GPU." if row.gpu else "."))
            if row.limits:
                parts.append(f"\n{row.limits}")
    return "\n".join(parts).rstrip("\n") + "\n"


def summary(data: dict[str, Any] | None, row: Row) -> str:
    """The last two cells of a row in the first table: figures, and whether the ask was met."""
    if data is None:
        return "not measured: needs a GPU | " if row.gpu else "not measured | "
    asks = [ask for ask in data["asks"] if ask["value"] is not None]
    figures = "; ".join(f"{ask['what']}: {number(ask['value'])}" for ask in asks) or "stopped before its end"
    if not data["complete"] or not asks:
        return f"{figures} | incomplete"
    missed = sum(not ask["met"] for ask in asks)
    return f"{figures} | " + ("met" if not missed else "missed" if missed == len(asks) else f"{missed} missed")


def section(row: Row, data: dict[str, Any]) -> list[str]:
    """What one row's results look like."""
    machine, commit = data["machine"], data["commit"]
    lines = [
        f"{row.work[0].upper()}{row.work[1:]}. Instead of: {row.peer}.",
        "",
        f"Measured {data['started'][:10]} at commit `{commit['id'][:10]}`{' (changed)' if commit['changed'] else ''} "
        f"on {machine['cpus']} cores ({machine['cpu']}), {machine['memory_gib']} GiB, {machine['gpu'] or 'no GPU'}, "
        f"Python {machine['python']}; versions in [results/{row.name}.json](results/{row.name}.json)."
        + ("" if data["complete"] else " **The measurement was stopped before its end.**"),
        "",
    ]
    if data["asks"]:
        lines += ["| asked of | found | limit | |", "|---|---|---|---|"]
        for ask in data["asks"]:
            verdict = {True: "met", False: "missed", None: "not measured"}[ask["met"]]
            shown = "-" if ask["value"] is None else number(ask["value"])
            lines.append(f"| {ask['what']} | {shown} | {ask['sense']} {number(ask['limit'])} | {verdict} |")
        lines.append("")
    lines += cases_table(data["cases"])
    for case in data["cases"]:
        lines += verdicts_table(case)
    lines += facts(data)
    if row.limits:
        lines += ["", row.limits]
    lines += profile_table(data.get("profile"))
    lines += ["", "<details><summary>Commands</summary>", "", "```"]
    lines += dict.fromkeys(command for case in data["cases"] for command in case["commands"].values())
    return [*lines, "```", "", "</details>"]


def cases_table(cases: list[dict[str, Any]]) -> list[str]:
    """Medians of every comparison."""
    shown = [key for key in COLUMNS if any(key in figures for case in cases for figures in case["medians"].values())]
    if "start_up_s" in shown and "imports_s" in shown:
        shown.remove("imports_s")
    lines = [
        f"| | side | runs | {' | '.join(COLUMNS[key] for key in shown)} |",
        f"|---|---|---|{'---|' * len(shown)}",
    ]
    for case in cases:
        for side, figures in case["medians"].items():
            cells = " | ".join(number(figures[key]) if key in figures else "" for key in shown)
            lines.append(f"| {case['label']} | {side} | {len(case['runs'][side])} | {cells} |")
    return [*lines, "", "Medians; each run is in the JSON."]


def verdicts_table(case: dict[str, Any]) -> list[str]:
    """A table that a case holds: lines of equal keys."""
    lines: list[str] = []
    for name, rows in case["facts"].items():
        if isinstance(rows, list) and rows and isinstance(rows[0], dict):
            lines += ["", f"{case['label']}:", "", f"| {' | '.join(rows[0])} |", "|---" * len(rows[0]) + "|"]
            lines += [f"| {' | '.join(str(value) for value in row.values())} |" for row in rows]
        assert name
    return lines


def facts(data: dict[str, Any]) -> list[str]:
    """Other figures of a row, and of its cases, as a list."""
    lines = []
    for label, found in [("", data["facts"]), *((case["label"], case["facts"]) for case in data["cases"])]:
        for name, value in found.items():
            if isinstance(value, dict):
                value = ", ".join(f"{key} {number(part)}" for key, part in value.items() if not isinstance(part, list))
            elif isinstance(value, list):
                continue
            lines.append(f"- {label + ': ' if label else ''}{name}: {number(value)}")
    return ["", *lines] if lines else []


def profile_table(profile: list[dict[str, Any]] | None) -> list[str]:
    """Where our side's time goes, when it was profiled."""
    if not profile:
        return []
    lines = [
        "",
        "Where our side's time goes (one more run under py-spy; running threads, inclusive):",
        "",
        "| function | share |",
        "|---|---|",
    ]
    return lines + [f"| `{line['function']}` | {line['share']:.0%} |" for line in profile]


def number(value: Any) -> str:
    """A figure as a person reads it; other things as text."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    if float(value).is_integer():
        return str(int(value))
    return f"{value:.3g}"


def draw(plot: Plot, cases: Iterable[dict[str, Any]], path: Path) -> bool:
    """Draw how a cost grows.

    Args:
        plot: what to draw.
        cases: the row's comparisons; those with a size are the points.
        path: SVG file to write.

    Returns:
        Whether there were points enough.
    """
    series: dict[str, dict[float, float]] = {}
    for case in cases:
        for side, figures in case["medians"].items():
            if case["x"] is not None and plot.figure in figures:
                name = side + (" " + case["label"].split()[-1] if case["label"].endswith((" up", " down")) else "")
                series.setdefault(name, {}).setdefault(case["x"], figures[plot.figure])
    if not any(len(points) > 1 for points in series.values()):
        return False
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot

    with mpl.rc_context({"svg.hashsalt": "bench", "svg.fonttype": "none", "font.size": 10}):
        figure, axes = pyplot.subplots(figsize=(6.4, 3.8), layout="constrained")
        for name, points in series.items():
            sizes = sorted(points)
            own = name.split()[0] == "ours"
            down = name.endswith(" down")
            axes.plot(
                sizes, [points[size] for size in sizes], label=name, marker="o" if own else "s",
                linestyle="--" if down else "-", color=COLOURS.get(name.split()[0], "#b3541e"),
                linewidth=2 if own else 1.5,
            )  # fmt: skip
        if plot.log:
            axes.set_xscale("log")
            axes.set_yscale("log")
        else:
            axes.set_ylim(bottom=0)
        axes.set_xlabel(plot.x)
        axes.set_ylabel(plot.y)
        axes.set_title(plot.title)
        axes.grid(visible=True, which="major", color="#dddddd")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
        figure.savefig(path, metadata={"Date": None})
        pyplot.close(figure)
    return True


COLOURS = {"ours": "#0b6e4f", "boto3": "#5b5b9f"}

HEAD = """# Benchmarks

`python -m bench [NAME...]` (or `make bench` for every row a machine without a GPU can run; `--gpu` for the others)
measures this project against what a person would run instead, on the same work in the same minutes. Both sides are
whole processes and run in alternation: five pairs where a run takes less than 30 seconds, three above; points of the
growth plots once. Wall and CPU seconds are of the process with its children, peak memory is that of its largest
process. This page is written from the JSON in [results/](results); no number is typed. `--list` lists the rows,
`--render` writes the page again, `--profile` adds a profile of our side, `--tiny` tries the machinery, `--go-on` takes
up a measurement that was stopped.
The load a machine had before each run stands in the JSON: where it is above the number of cores, others were at work,
and the ratios hold better than the seconds.
"""

"""The report of a run: one HTML page that needs nothing else, for MLflow, the KFP UI and the disk.

Called by register_model. It shows what was trained on what, how training went, base and candidate side by side with
intervals, the gates, samples, and what is needed to repeat the run. Everything from data is escaped; a part whose data
is missing is left out, not shown empty.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from components.register_model.charts import bar_chart, curve_chart, interval_chart

METRICS = (
    ("format_compliance", "In the format (strict)"),
    ("accuracy_strict", "In the format and right"),
    ("accuracy_lenient", "Right, however it is said"),
    ("format_compliance_lenient", "An answer block can be read"),
    ("truncation_rate", "Cut off at the token limit"),
)
"""The judged metrics and what a reader calls them."""

SHOWN_PAIRS = 20
SHOWN_CHARACTERS = 4000


@dataclass(frozen=True)
class ReportInputs:
    """All that the page is made of.

    Attributes:
        run_name: of the run.
        config: the whole run config as plain data.
        training: logged rows of the training: step, stage, and TRL's metric names.
        base_metrics: the base's metrics: name -> value, low, high, n.
        base_settings: how the base was evaluated.
        base_samples: its samples.
        candidate_metrics: the candidate's metrics.
        candidate_settings: how it was evaluated.
        candidate_samples: its samples.
        verdict: verdict.json.
        pairs: base and candidate side by side, one row a holdout row.
        smoke: the smoke test's report; None where there was none.
        dataset: the dataset's report.
        versions: package -> version, and the device.
        links: label -> where the thing is.
        facts: further lines for "what was trained" (time, tokens, memory), label -> text.
        holdout_uses: evaluations of this holdout so far, this run's candidate included; None when not counted.
        reproduce: commands that repeat the run.
    """

    run_name: str
    config: Mapping[str, Any]
    training: Sequence[Mapping[str, Any]]
    base_metrics: Mapping[str, Mapping[str, Any]]
    base_settings: Mapping[str, Any]
    base_samples: Sequence[Mapping[str, Any]]
    candidate_metrics: Mapping[str, Mapping[str, Any]]
    candidate_settings: Mapping[str, Any]
    candidate_samples: Sequence[Mapping[str, Any]]
    verdict: Mapping[str, Any]
    pairs: Sequence[Mapping[str, Any]]
    smoke: Mapping[str, Any] | None
    dataset: Mapping[str, Any]
    versions: Mapping[str, str]
    links: Mapping[str, str]
    facts: Mapping[str, str] = field(default_factory=dict)
    holdout_uses: int | None = None
    reproduce: Sequence[str] = ()


def write_report(inputs: ReportInputs, path: Path) -> None:
    """Write the page.

    Args:
        inputs: what it shows.
        path: the file; its folder exists.
    """
    path.write_text(render_report(inputs), encoding="utf-8", errors="replace")


def render_report(inputs: ReportInputs) -> str:
    """The page as text."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("components.register_model"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"percent": percent, "points": points, "number": number}
    return environment.get_template("report.html.j2").render(
        inputs=inputs,
        verdict=inputs.verdict,
        headline=headline(inputs.verdict),
        cards=_cards(inputs.verdict),
        rows=_rows(inputs.verdict),
        interval_chart=_interval_chart(inputs.verdict),
        curves=training_curves(inputs.training),
        reasons=reason_shares(inputs),
        reasons_chart=_reasons_chart(reason_shares(inputs)),
        lengths=_lengths(inputs),
        further=_further(inputs),
        facts=_facts(inputs),
        data=_data(inputs),
        rewards=_rewards(inputs),
        pairs=choose_pairs(inputs.pairs),
        smoke=_smoke(inputs.smoke),
        config_text=_yaml(inputs.config),
        limit=SHOWN_CHARACTERS,
    )


def headline(verdict: Mapping[str, Any]) -> str:
    """What happened, in a sentence or two: how much was gained, and how much of it is form.

    Args:
        verdict: verdict.json.
    """
    strict, lenient = (verdict["differences"][name]["difference"] for name in ("accuracy_strict", "accuracy_lenient"))
    text = f"In the format and right: {points(strict['value'])} points {_ends(strict)}. "
    text += f"Right, however it is said: {points(lenient['value'])} points {_ends(lenient)}. "
    if strict["low"] > 0:
        if lenient["low"] > 0:
            part = max(0.0, min(1.0, lenient["value"] / strict["value"])) if strict["value"] else 0.0
            return text + f"About {part:.0%} of the gain is better answers, the rest is form."
        if lenient["high"] < 0:
            return text + "The gain is form, and the task itself got worse."
        return text + "The gain is form: the candidate says in the format what the base said in its own way."
    if strict["high"] < 0:
        return text + "The candidate is worse than the base."
    return text + "No difference to the base is shown."


def reason_shares(inputs: ReportInputs) -> list[dict[str, Any]]:
    """Why completions were not in the format: share of all, before and after, most frequent first."""
    names = sorted(
        {
            name.removeprefix("failure/")
            for metrics in (inputs.base_metrics, inputs.candidate_metrics)
            for name in metrics
            if name.startswith("failure/")
        }
    )
    rows = []
    for name in names:
        base, candidate = (
            metrics.get(f"failure/{name}", {}).get("value", 0.0)
            for metrics in (inputs.base_metrics, inputs.candidate_metrics)
        )
        rows.append({"name": name.replace("_", " "), "base": base, "candidate": candidate})
    return sorted(rows, key=lambda row: -max(row["base"], row["candidate"]))


def training_curves(history: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Charts of the training: title, note and SVG; those without data are left out.

    Args:
        history: logged rows.
    """
    boundaries = [float(row["step"]) for before, row in pairwise(history) if before.get("stage") != row.get("stage")]
    rewards = sorted(
        {name for row in history for name in row if name.startswith("rewards/") and name.endswith("/mean")}
    )
    wanted: list[tuple[str, dict[str, str], bool, str]] = [
        ("Total reward", {"reward": "reward"}, False, "Weighted sum, mean over the batch. It should rise."),
        (
            "Each reward",
            {name.split("/")[1]: name for name in rewards},
            False,
            "Before weights. One that never moves teaches nothing.",
        ),
        (
            "Groups without spread",
            {"share of groups": "frac_reward_zero_std"},
            True,
            "Groups whose completions all scored the same teach nothing; near 100 % training stands still.",
        ),
        (
            "Completion length",
            {"mean": "completions/mean_length", "longest": "completions/max_length"},
            False,
            "Tokens. A sudden rise or fall is often a reward being gamed.",
        ),
        (
            "Cut off at the limit",
            {"share of completions": "completions/clipped_ratio"},
            True,
            "Completions that hit max_completion_length.",
        ),
        ("Entropy", {"entropy": "entropy"}, False, "How undecided the policy is; a fall to zero is a collapse."),
        ("KL to the reference", {"kl": "kl"}, False, "Distance from the base model (only when beta > 0)."),
        ("Gradient norm", {"grad_norm": "grad_norm"}, False, "Before clipping. Spikes mean instability."),
    ]
    charts = []
    for title, columns, share, note in wanted:
        series = {
            label: [(float(row["step"]), float(row[column])) for row in history if row.get(column) is not None]
            for label, column in columns.items()
        }
        series = {label: found for label, found in series.items() if found}
        if series:
            svg = curve_chart(series, title=f"{title} over training steps", share=share, boundaries=boundaries)
            charts.append({"title": title, "note": note, "svg": svg})
    return charts


def choose_pairs(pairs: Sequence[Mapping[str, Any]], most: int = SHOWN_PAIRS) -> list[dict[str, Any]]:
    """Samples to show: won and lost in equal parts, judged strictly, then what was lost leniently, then ties.

    Args:
        pairs: one row a holdout row.
        most: rows to show.
    """
    lost = [row for row in pairs if "lost" in (row["outcome_strict"], row["outcome_lenient"])]
    won = [row for row in pairs if row not in lost and "won" in (row["outcome_strict"], row["outcome_lenient"])]
    both_right = [row for row in pairs if row["outcome_strict"] == "tied" and row["candidate_correct_strict"]]
    both_wrong = [
        row
        for row in pairs
        if row["outcome_strict"] == row["outcome_lenient"] == "tied" and not row["candidate_correct_strict"]
    ]
    lost_shown = lost[: max(most // 2, most - len(won))]
    won_shown = won[: most - len(lost_shown)]
    shown = [("lost", row) for row in lost_shown] + [("won", row) for row in won_shown]
    for label, rows in (("both wrong", both_wrong), ("both right", both_right)):
        room = most - len(shown)
        shown += [(label, row) for row in rows[: -(-room // 2) if label == "both wrong" else room]]
    order = {"won": 0, "lost": 1, "both wrong": 2, "both right": 3}
    return [{"outcome": label, **row} for label, row in sorted(shown, key=lambda entry: order[entry[0]])]


def percent(value: float | None) -> str:
    """A share as text."""
    return "" if value is None else f"{value * 100:.1f} %"


def points(value: float | None) -> str:
    """A difference of shares as text, with a real minus sign."""
    return "" if value is None else f"{value * 100:+.1f}".replace("-", "−")


def number(value: Any) -> str:
    """A number as text."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _ends(figure: Mapping[str, Any]) -> str:
    return f"[{points(figure['low'])}, {points(figure['high'])}]"


def _cards(verdict: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"label": label, **verdict["differences"][name]} for name, label in METRICS[:3]]


def _rows(verdict: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"label": label, "name": name, **verdict["differences"][name]} for name, label in METRICS]


def _interval_chart(verdict: Mapping[str, Any]) -> str:
    rows = [
        (label, verdict["differences"][name]["base"], verdict["differences"][name]["candidate"])
        for name, label in METRICS
    ]
    return interval_chart(rows, title="Shares before and after with their intervals")


def _reasons_chart(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return ""
    return bar_chart(
        [(row["name"], row["base"], row["candidate"]) for row in rows[:8]],
        title="Why completions were not in the format, base and candidate",
    )


def _lengths(inputs: ReportInputs) -> list[dict[str, Any]]:
    names = (
        ("completion_tokens/mean", "mean"),
        ("completion_tokens/p50", "median"),
        ("completion_tokens/p90", "90th percentile"),
        ("completion_tokens/p99", "99th percentile"),
    )
    return [
        {
            "label": label,
            "base": inputs.base_metrics[name]["value"],
            "candidate": inputs.candidate_metrics[name]["value"],
        }
        for name, label in names
        if name in inputs.base_metrics and name in inputs.candidate_metrics
    ]


def _further(inputs: ReportInputs) -> list[dict[str, Any]]:
    """Metrics that were measured and not judged: sampled decoding, slices, further sets, reward means."""
    groups = (
        ("Sampled completions", "sampled/"),
        ("By slice", "slice/"),
        ("Further questions", "also/"),
        ("Rewards on the holdout", "reward/"),
    )
    left_out = ("completion_tokens", "failure/", "format_compliance_lenient")
    tables = []
    for title, prefix in groups:
        rows = [
            {
                "label": name.removeprefix(prefix).replace("/", " · ").replace("_", " "),
                "base": inputs.base_metrics.get(name),
                "candidate": figure,
                "share": prefix != "reward/" and "reward/" not in name,
            }
            for name, figure in inputs.candidate_metrics.items()
            if name.startswith(prefix) and not any(part in name for part in left_out)
        ]
        if rows:
            tables.append({"title": title, "rows": rows})
    return tables


def _facts(inputs: ReportInputs) -> list[tuple[str, str]]:
    """What was trained, how, and how it was evaluated."""
    config = inputs.config
    model, training = config.get("model", {}), config.get("training", {})
    lora = config.get("lora")
    stages = list(dict.fromkeys(str(row["stage"]) for row in inputs.training if row.get("stage")))
    steps = max((int(row["step"]) for row in inputs.training), default=0)
    adapter = "all weights"
    if lora:
        targets = lora.get("target_modules", "")
        targets = targets if isinstance(targets, str) else ", ".join(targets)
        adapter = (
            f"LoRA r {lora.get('r')}, alpha {number(lora.get('alpha'))}, dropout {lora.get('dropout')}, on {targets}"
        )
    evaluated = inputs.candidate_settings
    greedy = (evaluated.get("sampling") or {}).get("greedy", {})
    most_tokens = greedy.get("max_new_tokens", "?")
    engine = " ".join(str(evaluated.get(name, "")) for name in ("engine", "version"))
    engine += f", {evaluated.get('dtype', '')} on {evaluated.get('device', '')}"
    engine += f"; {inputs.verdict['decoding']}, at most {most_tokens} tokens"
    lines = [
        ("Base model", f"{model.get('source', '')}{' @ ' + model['revision'] if model.get('revision') else ''}"),
        ("Trained", f"{adapter}; {steps:,} steps{' in stages ' + ', '.join(stages) if len(stages) > 1 else ''}"),
        ("Learning rate", str(training.get("learning_rate", ""))),
        ("Group size G", str(training.get("num_generations", ""))),
        ("Most tokens while training", str(training.get("max_completion_length", ""))),
        *inputs.facts.items(),
        ("Evaluated with", engine),
    ]
    if inputs.holdout_uses is not None:
        lines.append(
            ("Holdout used", f"{inputs.holdout_uses} evaluations so far (the more, the less a new result on it means)")
        )
    return [(label, text) for label, text in lines if text]


def _data(inputs: ReportInputs) -> list[dict[str, Any]]:
    splits = dict(inputs.dataset.get("splits", {}))
    rows = [
        {"name": name, "rows": split.get("rows"), "tokens": split.get("prompt_tokens", {})}
        for name, split in splits.items()
    ]
    if "holdout" not in splits:
        rows.append({"name": "holdout (judged)", "rows": inputs.verdict["rows"], "tokens": {}})
    return rows


def _rewards(inputs: ReportInputs) -> list[dict[str, Any]]:
    """Rewards with weight, as the smoke test saw them, else as the config lists them."""
    if inputs.smoke and inputs.smoke.get("rewards"):
        return [
            {
                "name": entry["name"],
                "weight": entry["weight"],
                "source": entry["source"],
                "aspect": entry["aspect"] or "",
            }
            for entry in inputs.smoke["rewards"]
        ]
    listed = {
        name: entry
        for name, entry in inputs.config.get("rewards", {}).items()
        if isinstance(entry, dict) and "weight" in entry
    }
    return [
        {
            "name": name,
            "weight": entry["weight"],
            "source": entry.get("use") or name,
            "aspect": entry.get("aspect") or "",
        }
        for name, entry in listed.items()
    ]


def _smoke(smoke: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if not smoke:
        return None
    signal = smoke.get("signal") or {}
    figures = (
        ("groups sampled", str(len(signal["groups"])) if signal.get("groups") else ""),
        ("groups without spread", percent(signal.get("constant_share"))),
        ("mean spread in a group", number(signal["mean_spread"]) if "mean_spread" in signal else ""),
        ("mean total reward", number(signal["mean_total"]) if signal.get("mean_total") is not None else ""),
        ("truncated", percent(signal.get("truncated_share"))),
        ("distinct completions in a group", percent(signal.get("distinct_share"))),
    )
    findings = [dict(finding) for finding in smoke.get("findings", [])]
    return {
        "passed": bool(smoke.get("passed")),
        "findings": findings,
        "figures": [(label, text) for label, text in figures if text],
    }


def _yaml(config: Mapping[str, Any]) -> str:
    import yaml

    return str(yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True, width=100))

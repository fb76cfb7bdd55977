"""The smoke test's report on disk: `report.json` for programs, `report.html` for people (self-contained, no network).

Written by `smoke_test_rewards`; shown in the KFP UI, in MLflow once a run exists, or opened from disk. The page shows a
part of the sampled groups; `report.json` holds all of them.
"""

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from components.smoke_test_rewards.config import SmokeTestConfig
from components.smoke_test_rewards.findings import Finding, by_part
from components.smoke_test_rewards.learning_signal import Signal
from components.smoke_test_rewards.trap_checks import TOTAL, TableLine

SHOWN_FINDINGS = 5
SHOWN_GROUPS = 6
SHOWN_COMPLETIONS = 4


@dataclass(frozen=True)
class RewardFacts:
    """One reward as the smoke test saw it.

    Attributes:
        name: its key in the config.
        source: the library's name for it, or where a person's own comes from.
        weight: in the total.
        aspect: what it declares to look at; None when it declares nothing.
        columns: dataset columns it reads.
        random: whether it is declared random.
        repeats: whether a second call gave the same scores; None when that was not tried.
        seconds: for one completion, on average; None when it could not be timed.
    """

    name: str
    source: str
    weight: float
    aspect: str | None
    columns: tuple[str, ...]
    random: bool
    repeats: bool | None
    seconds: float | None


@dataclass(frozen=True)
class SmokeTestReport:
    """What the smoke test found.

    Attributes:
        passed: whether no failure is left that nobody waived.
        findings: failures, warnings and waived ones.
        rewards: the rewards as seen.
        table: scores by kind of completion.
        rows: labels of the rows used.
        contract: hash of the contract.
        honest_total: mean weighted total of a plain honest completion; None when none could be scored.
        signal: what the base model's completions say; None when that part was off.
        reference: of the stored report, `<uri>@sha256:<hex>`; None when it was not stored.
    """

    passed: bool
    findings: tuple[Finding, ...]
    rewards: tuple[RewardFacts, ...]
    table: tuple[TableLine, ...]
    rows: tuple[str, ...]
    contract: str
    honest_total: float | None
    signal: Signal | None
    reference: str | None = None

    @property
    def failures(self) -> tuple[Finding, ...]:
        """The failures that stop the run."""
        return tuple(finding for finding in self.findings if finding.stops)


def write_report(report: SmokeTestReport, config: SmokeTestConfig, directory: Path) -> None:
    """Write `report.json` and `report.html`.

    Args:
        report: what was found.
        config: the section it was made under; the page shows its limits.
        directory: an existing folder.
    """
    text = json.dumps(report_json(report), indent=1, ensure_ascii=False, allow_nan=False)
    (directory / "report.json").write_text(text + "\n", encoding="utf-8", errors="replace")
    write_page(report, config, directory / "report.html")


def write_page(report: SmokeTestReport, config: SmokeTestConfig, path: Path) -> None:
    """Write the report as one HTML page.

    Args:
        report: what was found.
        config: the section it was made under; the page shows its limits.
        path: the file.
    """
    path.write_text(render_html(report, config), encoding="utf-8", errors="replace")


def report_json(report: SmokeTestReport) -> dict[str, Any]:
    """The report as JSON-able data; its own reference is left out, since it would be part of what it names."""
    data: dict[str, Any] = asdict(report)
    del data["reference"]
    for line in data["table"]:
        line["flagged"] = sorted(line["flagged"])
    if report.signal is not None:
        for group, shown in zip(report.signal.groups, data["signal"]["groups"], strict=True):
            shown.update(spread=group.spread, constant=group.constant)
    return data


def render_html(report: SmokeTestReport, config: SmokeTestConfig) -> str:
    """The report as one HTML page."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters.update(number=number, percent=_percent, duration=duration, shortened=shortened, marked=_marked)
    template = environment.from_string((Path(__file__).parent / "report.html.j2").read_text(encoding="utf-8"))
    findings = report.findings
    signal = report.signal
    groups = sorted(signal.groups, key=lambda group: -group.spread)[:SHOWN_GROUPS] if signal else []
    return template.render(
        report=report,
        config=config,
        columns=[*(reward.name for reward in report.rewards), TOTAL],
        shown_findings=SHOWN_FINDINGS,
        finding_groups=[
            *((f"Failures of {part}", "failure", found) for part, found in by_part(report.failures).items()),
            ("Warnings", "warning", [f for f in findings if f.level == "warning"]),
            ("Accepted", "waived", [f for f in findings if f.level == "failure" and not f.stops]),
        ],
        table_parts=[
            ("Honest completions", [line for line in report.table if line.honest]),
            ("Traps", [line for line in report.table if not line.honest]),
        ],
        shown_groups=groups,
        shown_completions=SHOWN_COMPLETIONS,
    )


def number(value: float | None, digits: int = 3) -> str:
    """A score for people: no more digits than it needs, a dash for None."""
    if value is None:
        return "–"
    text = f"{value:.{digits}f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return text.replace("-", "−") if text != "-0" else "0"


def _percent(share: float) -> str:
    return f"{round(share * 100) + 0:d}%".replace("-", "−")


def duration(seconds: float | None) -> str:
    """Seconds for people, in the unit that fits."""
    if seconds is None:
        return "–"
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def shortened(text: str, limit: int) -> str:
    """The start of a text, characters that do not print replaced."""
    clean = "".join(
        char if char.isprintable() or char in "\n\t" else "\N{REPLACEMENT CHARACTER}" for char in text[: limit + 1]
    )
    return clean if len(text) <= limit else clean[:limit] + "…"


def _marked(sentence: str) -> Any:
    """A sentence whose `quoted` parts become code."""
    from markupsafe import Markup, escape

    parts = re.split(r"`([^`]*)`", sentence)
    pieces = [Markup("<code>{}</code>").format(part) if index % 2 else escape(part) for index, part in enumerate(parts)]
    return Markup("").join(pieces)

"""What the smoke test says: named findings, their level, and the waivers that a person gave.

Made by `data_checks`, `trap_checks` and `learning_signal`; read by the report, the command line and `require_passed`.
A finding's name is `<reward or part>/<check or kind>`, such as `correctness/thousands_comma` or `total/shotgun`: that
is what a waiver names.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Literal

from components.smoke_test_rewards.config import Waiver

Level = Literal["failure", "warning"]


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong (failure) or worth knowing (warning).

    Attributes:
        name: `<reward or part>/<check or kind>`; unique within a report.
        level: a failure that is not waived stops the run.
        sentence: what was seen, with the row and the numbers.
        mend: what to do about it; empty when the sentence says it.
        waived: the reason a person gave for accepting it, None when not waived.
    """

    name: str
    level: Level
    sentence: str
    mend: str = ""
    waived: str | None = None

    @property
    def stops(self) -> bool:
        """Whether training must not start because of it."""
        return self.level == "failure" and self.waived is None


def apply_waivers(findings: Sequence[Finding], waivers: Sequence[Waiver]) -> list[Finding]:
    """Mark waived failures; a waiver that fits nothing is reported, so that none outlives its cause unseen.

    Args:
        findings: all findings of a run.
        waivers: the config's; `*` in a name matches any part of it.

    Returns:
        The findings in their order, then one warning for each waiver without a match.
    """
    used: set[str] = set()
    marked: list[Finding] = []
    for finding in findings:
        waiver = next((w for w in waivers if fnmatchcase(finding.name, w.name)), None)
        if waiver is not None:
            used.add(waiver.name)
            if finding.level == "failure":
                finding = replace(finding, waived=waiver.reason)
        marked.append(finding)
    for waiver in waivers:
        if waiver.name not in used:
            marked.append(
                Finding(
                    name=f"waiver/{waiver.name}",
                    level="warning",
                    sentence=f"the waiver for `{waiver.name}` fits no finding of this run",
                    mend="Take it out of smoke_test.waive, or correct its name.",
                )
            )
    return marked


def by_part(findings: Sequence[Finding]) -> dict[str, list[Finding]]:
    """Findings by the reward or part that they are about, in their order."""
    parts: dict[str, list[Finding]] = {}
    for finding in findings:
        parts.setdefault(finding.name.partition("/")[0], []).append(finding)
    return parts

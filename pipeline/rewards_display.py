"""What `grpo rewards` prints: findings, score tables, verdicts on one completion, sampled groups. Rich only."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from components.contract import Contract
from components.rewards.build import Reward
from components.smoke_test_rewards.findings import Finding
from components.smoke_test_rewards.learning_signal import Group, Signal
from components.smoke_test_rewards.report import SmokeTestReport, duration, number, shortened
from components.smoke_test_rewards.scoring import Scored
from components.smoke_test_rewards.trap_checks import TOTAL
from components.smoke_test_rewards.traps import Row

SHOWN_CHARACTERS = 600


def print_report(report: SmokeTestReport, table: bool) -> None:
    """Findings, rewards and, if wanted, the table of scores by kind.

    Args:
        report: what was found.
        table: whether to print the scores of every kind of completion.
    """
    console = Console()
    if table:
        console.print(_score_table(report))
    console.print(_reward_table(report))
    print_findings(console, report.findings)
    counts = (len(report.rewards), "reward"), (len(report.rows), "row"), (len(report.table), "kind")
    rewards, rows, kinds = (f"{count} {word}{'' if count == 1 else 's'}" for count, word in counts)
    failures = len(report.failures)
    verdict = "[bold green]passed[/]" if report.passed else f"[bold red]failed, findings: {failures}[/]"
    tried = f"{rewards} on {rows}, {kinds} of completions"
    console.print(f"{tried}: {verdict}")
    if not report.passed:
        console.print("Mend the rewards, or accept a finding by its name with a reason under smoke_test.waive.")


def print_findings(console: Console, findings: Sequence[Finding]) -> None:
    """One line a finding, the failures first.

    Args:
        console: where to.
        findings: in any order.
    """
    for finding in sorted(findings, key=lambda finding: (not finding.stops, finding.level)):
        word = "waived" if finding.waived else finding.level
        colour = {"failure": "red", "warning": "yellow", "waived": "cyan"}[word]
        console.print(f"[{colour}]{word}[/] {escape(finding.sentence)} [dim]{escape(finding.name)}[/]", highlight=False)
        if finding.waived or finding.mend:
            more = f"accepted: {finding.waived}" if finding.waived else finding.mend
            console.print(f"  {escape(more)}", style="dim", highlight=False)


def print_verdicts(contract: Contract, rewards: Sequence[Reward], row: Row, text: str, scored: Scored) -> None:
    """What the contract reads in one completion, and what each reward gives for it and why.

    Args:
        contract: of the run.
        rewards: the run's.
        row: gives gold answer and columns.
        text: the completion.
        scored: its scores, one completion.
    """
    console = Console()
    compliance, answer = contract.check(text), contract.read_answer(text)
    lenient = contract.read_answer(text, lenient=True)
    reasons = ", ".join(compliance.reasons)
    facts = Table.grid(padding=(0, 2))
    facts.add_row("strict format", "yes" if compliance.strict else f"no: {escape(reasons)}")
    facts.add_row("answer read", "none" if answer is None else escape(shortened(answer, 200)))
    if lenient != answer:
        facts.add_row("read leniently", "none" if lenient is None else escape(shortened(lenient, 200)))
    facts.add_row("gold answer", f"{escape(shortened(row.gold, 200))} [dim]({escape(row.label)})[/]")
    facts.add_row("right", "yes" if contract.equal(answer, row.gold) else "no")
    console.print(facts)
    problems = {problem.reward: problem for problem in scored.problems}
    table = Table("reward", "aspect", "weight", "score", "why")
    for reward in rewards:
        problem = problems.get(reward.name)
        value = scored.values[reward.name][0]
        why = _why(contract, reward, answer, row.gold, reasons) if problem is None else problem.message
        score = "[red]failed[/]" if problem else number(value)
        table.add_row(reward.name, str(reward.aspect or "-"), number(reward.weight), score, escape(why))
    console.print(table)
    for problem in problems.values():
        if problem.traceback:
            console.print(f"[red]{problem.reward}[/]\n{escape(problem.traceback.rstrip())}", highlight=False)
    if problems:
        console.print("A reward that fails leaves the completion without any score.")
        return
    values = [(reward.weight, scored.values[reward.name][0]) for reward in rewards]
    parts = [weight * value for weight, value in values if value is not None]
    console.print(f"weighted total: [bold]{number(sum(parts)) if parts else 'none'}[/]")


@contextmanager
def counting(what: str) -> Iterator[Callable[[int, int], None]]:
    """A spinner that counts; yields what to call with done and total.

    Args:
        what: the things counted.
    """
    with Console(stderr=True).status(what) as status:
        yield lambda done, total: status.update(f"{what}: {done} of {total}")


def print_signal(signal: Signal, findings: Sequence[Finding], shown: int) -> None:
    """Each group with its completions and scores, then the figures over all.

    Args:
        signal: what was measured.
        findings: what follows from it.
        shown: completions of a group to print.
    """
    console = Console()
    for group in signal.groups:
        _print_group(console, group, shown)
    table = Table("reward", "weight", "mean", "spread", "range", "constant groups", "share of differences")
    for reward in signal.rewards:
        share = "-" if reward.share_of_variance is None else f"{reward.share_of_variance:.0%}"
        limits = "-" if reward.lowest is None else f"{number(reward.lowest)} to {number(reward.highest)}"
        spread = number(reward.spread)
        constant = f"{reward.constant_share:.0%}"
        table.add_row(reward.name, number(reward.weight), number(reward.mean), spread, limits, constant, share)
    console.print(table)
    for first, second, value in signal.correlations:
        console.print(f"correlation of {first} and {second}: {number(value)}", highlight=False)
    constant_groups = sum(group.constant for group in signal.groups)
    console.print(
        f"{constant_groups} of {len(signal.groups)} groups without variance; mean total {number(signal.mean_total)}; "
        f"mean spread within a group {number(signal.mean_spread)}; {signal.truncated_share:.0%} of completions cut off",
        highlight=False,
    )
    print_findings(console, findings)


def _print_group(console: Console, group: Group, shown: int) -> None:
    constant = " [yellow](constant: nothing to learn)[/]" if group.constant else ""
    console.rule(f"{escape(group.label)}: spread {number(group.spread)}{constant}", align="left")
    console.print(f"[bold]{escape(shortened(group.prompt, SHOWN_CHARACTERS))}[/]", highlight=False)
    console.print(f"gold {escape(shortened(group.gold, 200))}", style="dim", highlight=False)
    for completion in group.completions[:shown]:
        scores = ", ".join(f"{name} {number(score)}" for name, score in completion.scores.items())
        cut = ", cut off" if completion.truncated else ""
        console.print(escape(shortened(completion.text, SHOWN_CHARACTERS)) or "(empty)", highlight=False)
        console.print(
            f"  total {number(completion.total)}: {scores} ({completion.tokens} tokens{cut})",
            style="cyan",
            highlight=False,
        )
    if len(group.completions) > shown:
        console.print(f"and {len(group.completions) - shown} more", style="dim")


def _score_table(report: SmokeTestReport) -> Table:
    names = [*(reward.name for reward in report.rewards), TOTAL]
    table = Table("completion", *names, title="mean score by kind of completion (red: see the findings)")
    for title, honest in (("honest", True), ("traps", False)):
        table.add_row(f"[bold]{title}[/]")
        for line in report.table:
            if line.honest == honest:
                cells = [(number(line.means.get(name)), name in line.flagged) for name in names]
                table.add_row(f"  {line.kind}", *(f"[red]{cell}[/]" if flagged else cell for cell, flagged in cells))
    return table


def _reward_table(report: SmokeTestReport) -> Table:
    table = Table("reward", "aspect", "weight", "columns", "time a completion")
    for reward in report.rewards:
        columns = ", ".join(reward.columns) or "-"
        table.add_row(reward.name, reward.aspect or "-", number(reward.weight), columns, duration(reward.seconds))
    return table


def _why(contract: Contract, reward: Reward, answer: str | None, gold: str, reasons: str) -> str:
    """The contract's reason behind a library reward's score; a person's own is described by its docstring."""
    if reward.own:
        return reward.description
    if reward.aspect == "format":
        return f"not strict: {reasons}" if reasons else "strict"
    if reward.aspect == "value":
        if answer is None:
            return f"no answer read: {reasons}"
        same = "equals" if contract.equal(answer, gold) else "is not"
        return f"{shortened(answer, 60)} {same} {shortened(gold, 60)}"
    return reward.description

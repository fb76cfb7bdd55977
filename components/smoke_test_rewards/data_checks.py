"""Does each reward keep its contract with the data? Columns, reserved names, what it returns, and how it behaves.

Called by `smoke_test_rewards` before anything else is tried: a reward that fails on ordinary completions is left out of
the trap and signal tests, where its failures would only hide the others' scores.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from components.rewards.build import Reward
from components.rewards.config import RewardConfig
from components.rewards.guard import FailureKind
from components.smoke_test_rewards.config import SmokeTestConfig
from components.smoke_test_rewards.findings import Finding, Level
from components.smoke_test_rewards.scoring import BATCH, DROPPED_COLUMNS, PASSED_BY_TRAINER, Bench, Problem, Tried
from components.smoke_test_rewards.traps import Row

RESERVED_COLUMNS = PASSED_BY_TRAINER | {"completion"}
"""Names that TRL 1.16 passes itself, drops or overwrites (GRPOTrainer._calculate_rewards)."""
_SAME = 1e-9
WHAT_AND_MEND = {
    FailureKind.EXCEPTION: ("raised", "It must score any text; give 0 for what it cannot read."),
    FailureKind.WRONG_LENGTH: ("broke the signature:", "It must return one score for each completion."),
    FailureKind.WRONG_TYPE: ("broke the signature:", "It must return a list with one score for each completion."),
    FailureKind.NOT_A_NUMBER: ("broke the signature:", "A score is a number, or None where it does not apply."),
    FailureKind.NOT_FINITE: (
        "gave a score that is no finite number:",
        "One infinite score spoils a whole training step; give a bounded one.",
    ),
    FailureKind.TIMED_OUT: ("hung:", "Make it faster, or raise smoke_test.seconds_per_completion."),
    FailureKind.DIED: ("crashed:", "Something in it ends the process; the step's log has the native traceback."),
}
"""For each way of failing: how a finding puts it, and what to do."""


@dataclass(frozen=True)
class Behaviour:
    """How a reward behaved on ordinary completions.

    Attributes:
        repeats: whether a second call gave the same scores.
        seconds: for one completion.
    """

    repeats: bool
    seconds: float


def check_columns(rewards: Sequence[Reward], rows: Sequence[Row]) -> tuple[list[Finding], set[str]]:
    """Reserved column names, and columns that rewards ask for and do not get.

    Args:
        rewards: the run's.
        rows: at least one; all have the same columns.

    Returns:
        Findings, and the names of rewards that cannot be called at all.
    """
    available = set(rows[0].columns) - DROPPED_COLUMNS
    listed = ", ".join(sorted(available)) or "none"
    findings = [
        Finding(
            f"data/reserved_{name}",
            "failure",
            f"the dataset has a column named `{name}`, which the trainer uses itself",
            "Leave it out of data.columns.keep, or rename it in the data.",
        )
        for name in sorted(RESERVED_COLUMNS & set(rows[0].columns))
    ]
    unusable: set[str] = set()
    for reward in rewards:
        for column in reward.columns:
            if column in PASSED_BY_TRAINER:
                continue
            if column in available:
                empty = sum(row.columns[column] is None for row in rows)
                if empty:
                    sentence = f"{reward.name}: column `{column}` is empty in {empty} of {len(rows)} rows tried"
                    findings.append(Finding(f"{reward.name}/empty_column_{column}", "warning", sentence))
                continue
            unusable.add(reward.name)
            sentence = f"{reward.name}: asks for a column `{column}`, which the dataset does not have; it has: {listed}"
            mend = "Keep the column (data.columns.keep), or map it: rewards.<name>.columns: {parameter: column}."
            if column in DROPPED_COLUMNS:
                sentence = f"{reward.name}: asks for `{column}`, which the trainer does not hand to rewards"
                mend = "The trainer passes `prompts`, `completions` and the dataset's other columns."
            findings.append(Finding(f"{reward.name}/missing_column_{column}", "failure", sentence, mend))
        for column in reward.optional_columns:
            if column not in available and column not in PASSED_BY_TRAINER:
                sentence = f"{reward.name}: its optional column `{column}` is not in the dataset; its default is used"
                findings.append(Finding(f"{reward.name}/optional_column_{column}", "warning", sentence))
    return findings, unusable


def check_behaviour(
    bench: Bench, ordinary: Sequence[Tried], smoke_test: SmokeTestConfig
) -> tuple[list[Finding], dict[str, Behaviour]]:
    """Call each reward on ordinary completions, again in reverse order, and once more under watch.

    Args:
        bench: the rewards; those that fail are taken off it.
        ordinary: completions as a model gives them, honest and wrong.
        smoke_test: limits.

    Returns:
        Findings, and how each reward behaved that is left on the bench.
    """
    findings: list[Finding] = []
    while True:
        first = bench.score(ordinary)
        failed = {problem.reward for problem in first.problems}
        if not failed:
            break
        # Where one reward fails the guard gives no score at all, so the others are tried again without it.
        findings += problem_findings(first.problems, len(ordinary))
        bench.drop(failed)
    again = bench.score(ordinary[::-1])
    findings += problem_findings(again.problems, len(ordinary))
    behaviours = {}
    for reward in bench.rewards:
        difference = _difference(ordinary, first.values[reward.name], again.values[reward.name][::-1])
        seconds = min(first.seconds[reward.name], again.seconds[reward.name]) / max(1, len(ordinary))
        behaviours[reward.name] = Behaviour(repeats=difference is None, seconds=seconds)
        if difference is not None and not reward.random:
            sentence = f"{reward.name}: scored one completion differently the second time: {difference}"
            mend = "Make it deterministic, or declare it: random: true; whole_batch: true when it compares completions."
            level: Level = "warning" if reward.whole_batch else "failure"
            findings.append(Finding(f"{reward.name}/not_deterministic", level, sentence, mend))
        if seconds > smoke_test.seconds_per_completion:
            limit = f"the limit is {smoke_test.seconds_per_completion:g} s"
            sentence = f"{reward.name}: takes {seconds:.3g} s for one completion; {limit}"
            mend = "Training waits for it at every step. Make it faster, or raise smoke_test.seconds_per_completion."
            findings.append(Finding(f"{reward.name}/slow", "failure", sentence, mend))
    return findings + _check_mutation(bench, ordinary[:BATCH], smoke_test), behaviours


def problem_findings(problems: Sequence[Problem], count: int) -> list[Finding]:
    """One finding for each reward and way of failing, with the first completion as the example.

    Args:
        problems: what failed.
        count: completions scored in all.
    """
    grouped: dict[tuple[str, FailureKind], list[Problem]] = {}
    for problem in problems:
        grouped.setdefault((problem.reward, problem.kind), []).append(problem)
    findings = []
    for (reward, kind), found in grouped.items():
        first = found[0]
        what, mend = WHAT_AND_MEND[kind]
        sentence = (
            f"{reward}: {what} {first.message} on {first.tried.shown} ({first.tried.row.label}); "
            f"{len(found)} of {count} completions"
        )
        findings.append(Finding(f"{reward}/{kind}", "failure", sentence, mend))
    return findings


def _check_mutation(bench: Bench, ordinary: Sequence[Tried], smoke_test: SmokeTestConfig) -> list[Finding]:
    """Whether a person's own reward changes the lists it is given."""
    own = [reward.name for reward in bench.rewards if reward.own]
    if not own:
        return []
    watch = {
        name: RewardConfig(
            use="components.smoke_test_rewards.probes:changes_inputs",
            options={"wrapped": bench.config.only([name]).to_json()},
            whole_batch=True,
        )
        for name in own
    }
    with Bench(bench.config.only(own).with_rewards(watch), bench.contract, smoke_test) as watched:
        seen = watched.score(ordinary)
    return [
        Finding(
            f"{name}/changes_inputs",
            "failure",
            f"{name}: changes the lists it is given; the rewards that come after it see something else",
            "Work on copies.",
        )
        for name in own
        if any(value == 1.0 for value in seen.values[name])
    ]


def _difference(ordinary: Sequence[Tried], first: Sequence[float | None], again: Sequence[float | None]) -> str | None:
    """The first completion that two calls scored differently, in words."""
    for tried, a, b in zip(ordinary, first, again, strict=True):
        alike = a is b if a is None or b is None else abs(a - b) <= _SAME * max(1.0, abs(a))
        if not alike:
            once, twice = (("no score" if value is None else f"{value:g}") for value in (a, b))
            return f"{once}, then {twice} with the batch in reverse order ({tried.row.label})"
    return None

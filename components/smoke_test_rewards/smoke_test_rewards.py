"""The step: try a run's rewards on the data, on traps and on samples of the base model, before a GPU is paid for.

`smoke_test_rewards` is what the pipeline calls; `try_rewards` is the part that needs neither store nor model, which
`grpo rewards test` runs on a laptop. Both return a report; `require_passed` turns one into the error that stops a run,
so that the report is written first. Rewards run in the guard only: what they do is contained and named.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from components.contract import Contract, build_contract
from components.errors import GateFailedError
from components.generation import Sampling
from components.rewards.build import Reward
from components.rewards.config import RewardsConfig
from components.rewards.guard import FailureKind
from components.sections import content_hash
from components.smoke_test_rewards.base_samples import DrawnGroup, generate_groups, score_groups
from components.smoke_test_rewards.config import SmokeTestConfig
from components.smoke_test_rewards.data_checks import Behaviour, check_behaviour, check_columns, problem_findings
from components.smoke_test_rewards.findings import Finding, apply_waivers, by_part
from components.smoke_test_rewards.learning_signal import Signal, judge_signal, measure_signal
from components.smoke_test_rewards.report import RewardFacts, SmokeTestReport, write_report
from components.smoke_test_rewards.rows import draw_training_rows, probe_rows, read_training_rows
from components.smoke_test_rewards.scoring import PASSED_BY_TRAINER, Bench, Problem, Tried
from components.smoke_test_rewards.trap_checks import (
    TOTAL,
    Held,
    TriedRow,
    judge_stage,
    judge_traps,
    score_table,
    totals,
)
from components.smoke_test_rewards.traps import Row, Sample, build_samples
from components.steps import report_progress
from components.storage.store import ArtifactStore

STEP = "smoke_test_rewards"
REPORT_FOLDER = "report"
"""Folder below the work folder that holds report.json and report.html."""
SHOWN_FAILURES = 8
"""Failures of each reward named in the error; the report has all."""
_FATAL = (FailureKind.TIMED_OUT, FailureKind.DIED)  # each costs a new worker, and time
StageWeights = Mapping[str, Mapping[str, float]]
_LARGE = 20_000  # characters from which a text may be slow to score
_ROWS_WITH_LARGE = 2  # whether 100 kB can be borne does not depend on the row


def smoke_test_rewards(
    dataset_directory: Path,
    model_directory: Path | None,
    contract: Contract,
    rewards: RewardsConfig,
    smoke_test: SmokeTestConfig,
    sampling: Sampling,
    store: ArtifactStore,
    *,
    work: Path,
    stages: StageWeights | None = None,
) -> SmokeTestReport:
    """Try the rewards and store the report.

    Args:
        dataset_directory: a prepared dataset; `train.parquet` is read.
        model_directory: the base model; None leaves the signal test out, as `smoke_test.prompts: 0` does.
        contract: of the run.
        rewards: the section.
        smoke_test: the section.
        sampling: the training's own, `n` being G.
        store: where the report goes.
        work: folder for the report's files.
        stages: weights by reward name, by the name of each stage that has its own.

    Returns:
        The report with its reference, passed or not; see `require_passed`.

    Raises:
        BadInputError: when a reward cannot be loaded, or there are no training rows.
    """
    rows = read_training_rows(dataset_directory, smoke_test.rows, smoke_test.seed)
    sample: SampleGroups | None = None
    if model_directory is not None and smoke_test.prompts > 0:
        directory = model_directory

        def sample() -> list[DrawnGroup]:
            drawn = draw_training_rows(dataset_directory, smoke_test.prompts, smoke_test.seed)
            return generate_groups(directory, contract, drawn, sampling, on_progress=_progress)

    report = try_rewards(
        rows, contract, rewards, smoke_test, sample=sample, temperature=sampling.temperature, stages=stages
    )
    directory = work / REPORT_FOLDER
    directory.mkdir(parents=True, exist_ok=True)
    write_report(report, smoke_test, directory)
    provenance = {"step": STEP, "passed": report.passed, "contract": contract.hash, "rewards": rewards.to_json()}
    key = f"smoke_tests/{content_hash((directory / 'report.json').read_text(encoding='utf-8'))}"
    return replace(report, reference=str(store.put(directory, key, provenance=provenance)))


SampleGroups = Callable[[], list[DrawnGroup]]


def try_rewards(
    rows: Sequence[Row],
    contract: Contract,
    rewards: RewardsConfig,
    smoke_test: SmokeTestConfig,
    *,
    sample: SampleGroups | None = None,
    temperature: float = 1.0,
    judge_total: bool = True,
    stages: StageWeights | None = None,
) -> SmokeTestReport:
    """Try the rewards: contract with the data, traps, and signal where there is something to sample with.

    Args:
        rows: training rows, at least one.
        contract: of the run.
        rewards: the section.
        smoke_test: the section.
        sample: draws groups from the base model; None leaves the signal test out. It is not called when a reward fails
            on ordinary completions.
        temperature: `sample` draws at, for the report.
        judge_total: False when these are only some of a run's rewards, which make up no total.
        stages: weights by reward name, by the name of each stage that has its own.

    Raises:
        BadInputError: when a reward cannot be loaded.
    """
    contract = build_contract(contract.config.model_copy(update={"prefill": ""}))
    findings: list[Finding] = []
    signal: Signal | None = None
    with Bench(rewards, contract.config, smoke_test) as bench:
        every = bench.rewards
        column_findings, unusable = check_columns(every, rows)
        findings += column_findings
        bench.drop(unusable)
        read = {c for reward in every for c in (*reward.columns, *reward.optional_columns)} - PASSED_BY_TRAINER
        corpora = _corpora([*probe_rows(contract, rows, read, "answer"), *rows], contract)
        if not corpora:
            findings.append(_no_corpus(rows))
        behaviour_findings, behaviours = check_behaviour(bench, _ordinary(corpora), smoke_test)
        findings += behaviour_findings
        complete = bench.names == [reward.name for reward in every]
        whole = complete and judge_total
        held = [Held(reward.name, reward.weight, _aspect(reward), _reads_gold(reward)) for reward in bench.rewards]
        weights = {reward.name: reward.weight for reward in held}
        tried, problems = _try_corpora(bench, corpora)
        findings += problem_findings(problems, sum(len(row.samples) for row in tried))
        # Without one of the rewards there is no total to judge.
        findings += [found for found in judge_traps(held, tried) if whole or not found.name.startswith(f"{TOTAL}/")]
        if whole:
            for stage, own in (stages or {}).items():
                findings += judge_stage(stage, own, held, tried)
        honest_total = _honest_total(tried, weights) if whole else None
        table = score_table(held, tried, findings)
        if sample is not None and complete:
            bench.use([reward.name for reward in every])  # one that could not bear 100 kB is back
            groups, problems = score_groups(bench, sample(), weights)
            findings += problem_findings(problems, sum(len(group.completions) for group in groups))
            signal = measure_signal(groups, weights, temperature)
            findings += judge_signal(signal, smoke_test, honest_total=honest_total)
    marked = apply_waivers(_merged(findings), smoke_test.waive)
    return SmokeTestReport(
        passed=not any(finding.stops for finding in marked),
        findings=tuple(marked),
        rewards=_facts(rewards, every, behaviours),
        table=tuple(table),
        rows=tuple(row.row.label for row in tried),
        contract=contract.hash,
        honest_total=honest_total,
        signal=signal,
    )


def require_passed(report: SmokeTestReport) -> None:
    """Stop the run when the smoke test failed.

    Args:
        report: what was found.

    Raises:
        GateFailedError: naming the failures.
    """
    if report.passed:
        return
    failures = report.failures
    lines: list[str] = []
    for part, found in by_part(failures).items():
        lines += [_line(finding) for finding in found[:SHOWN_FAILURES]]
        if len(found) > SHOWN_FAILURES:
            lines.append(f"- and {len(found) - SHOWN_FAILURES} more of {part}")
    where = f"\nReport: {report.reference}" if report.reference else ""
    listed = "\n".join(lines)
    raise GateFailedError(
        f"the rewards failed the smoke test (findings: {len(failures)}); nothing was trained.\n"
        f"{listed}{where}\nMend the rewards, or accept a finding by its name with a reason under smoke_test.waive."
    )


def _progress(done: int, total: int) -> None:
    report_progress(STEP, done, total, unit="completion")


def _corpora(rows: Sequence[Row], contract: Contract) -> list[tuple[Row, list[Sample]]]:
    golds = [row.gold for row in rows]
    corpora = []
    for index, row in enumerate(rows):
        others = [*golds[index + 1 :], *golds[:index]]
        samples = build_samples(contract, row, others, large=index < _ROWS_WITH_LARGE)
        if samples:
            corpora.append((row, samples))
    return corpora


def _no_corpus(rows: Sequence[Row]) -> Finding:
    gold = rows[0].gold
    return Finding(
        "data/no_honest_completion",
        "failure",
        f"no honest completion can be written for any of the {len(rows)} rows tried: the contract does not read "
        f"`{gold[:80]}` ({rows[0].label}) back as right, so no trap can be told from it",
        "Set contract.answer to the kind of answer the data has.",
    )


def _ordinary(corpora: Sequence[tuple[Row, list[Sample]]]) -> list[Tried]:
    """Completions as a model gives them: for each row an honest one, one with white space around, and a wrong one."""
    ordinary = []
    for row, samples in corpora:
        spaced = [sample for sample in samples if sample.kind == "white_space_around"]
        wrong = [sample for sample in samples if not sample.honest]
        ordinary += [_tried(row, sample) for sample in (samples[0], *spaced, *wrong[:1])]
    return ordinary


def _tried(row: Row, sample: Sample) -> Tried:
    return Tried(row, sample.text, f"{sample.title} (`{sample.shown[:60]}`)" if sample.shown else sample.title)


def _try_corpora(bench: Bench, corpora: Sequence[tuple[Row, list[Sample]]]) -> tuple[list[TriedRow], list[Problem]]:
    """Score every sample, the large ones last; a reward that hangs or ends the worker is taken off the bench."""
    names = bench.names
    scores: list[dict[str, list[float | None]]] = [{name: [None] * len(s) for name in names} for _, s in corpora]
    unscored: list[set[int]] = [set() for _ in corpora]
    problems: list[Problem] = []
    for large in (False, True):
        for number, (row, samples) in enumerate(corpora):
            places = [place for place, sample in enumerate(samples) if (len(sample.text) >= _LARGE) == large]
            scored = bench.score([_tried(row, samples[place]) for place in places])
            problems += scored.problems
            for name, values in scored.values.items():
                for place, value in zip(places, values, strict=True):
                    scores[number][name][place] = value
            failed = {problem.tried.text for problem in scored.problems}
            unscored[number].update(p for p in places if samples[p].text in failed or bench.names != names)
            bench.drop({problem.reward for problem in scored.problems if problem.kind in _FATAL})
            report_progress(STEP, number + 1, len(corpora), unit="large row" if large else "row")
    tried = [
        TriedRow(row, samples, given, frozenset(places))
        for (row, samples), given, places in zip(corpora, scores, unscored, strict=True)
    ]
    return tried, problems


def _honest_total(tried: Sequence[TriedRow], weights: dict[str, float]) -> float | None:
    plain = [total for row in tried if (total := totals(row, weights)[0]) is not None]
    return fmean(plain) if plain else None


def _reads_gold(reward: Reward) -> bool:
    """Whether a reward may compare with the gold answer; one of another aspect than value cannot be held to it."""
    reads = reward.reads_anything or "answer" in (*reward.columns, *reward.optional_columns)
    return reads or reward.aspect not in (None, "value")


def _aspect(reward: Reward) -> str | None:
    return str(reward.aspect) if reward.aspect else None


def _facts(
    config: RewardsConfig, rewards: Sequence[Reward], behaviours: dict[str, Behaviour]
) -> tuple[RewardFacts, ...]:
    entries: dict[str, Any] = config.rewards()
    return tuple(
        RewardFacts(
            name=reward.name,
            source=entries[reward.name].source(reward.name),
            weight=reward.weight,
            aspect=_aspect(reward),
            columns=(*reward.columns, *reward.optional_columns),
            random=reward.random,
            repeats=behaviours[reward.name].repeats if reward.name in behaviours else None,
            seconds=behaviours[reward.name].seconds if reward.name in behaviours else None,
        )
        for reward in rewards
    )


def _merged(findings: Sequence[Finding]) -> list[Finding]:
    """One finding for each name, the first; failures before warnings."""
    first: dict[str, Finding] = {}
    for finding in sorted(findings, key=lambda finding: finding.level != "failure"):
        first.setdefault(finding.name, finding)
    return list(first.values())


def _line(finding: Finding) -> str:
    mend = f" {finding.mend}" if finding.mend else ""
    return f"- {finding.sentence} [{finding.name}]{mend}"

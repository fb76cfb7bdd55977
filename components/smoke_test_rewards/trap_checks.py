"""Judges scores of the corpus: honest completions above every trap, row by row, for each reward and for the total.

Called by `smoke_test_rewards` and `grpo rewards test` with the scores that the guard gave. A reward answers for the
aspect that it declares:

- `value` and `format`: every honest completion must score above every trap of that aspect;
- `length` and `style`: no trap of that aspect may score above the best honest completion (as much is a warning: such a
  reward cannot know what is true, only the total must);
- the weighted total: every honest completion above every trap of any kind;
- the total of a stage with weights of its own: the best honest completion above every trap of the aspects it rewards.

Pure: no reward is run here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from components.smoke_test_rewards.findings import Finding, Level
from components.smoke_test_rewards.learning_signal import weighted_total
from components.smoke_test_rewards.traps import Row, Sample

TOTAL = "total"
_STRICT = ("value", "format")
_SAME = 1e-6
_EXAMPLES = 3
_HONEST = "honest"
Scores = Mapping[str, Sequence[float | None]]


@dataclass(frozen=True)
class Held:
    """A reward as it is held to the corpus.

    Attributes:
        name: the reward's, or `total`.
        weight: in the total; a negative one turns "more" into "less".
        aspect: what it looks at; None when it declares nothing (then it is judged in the total only).
        reads_gold: whether it compares with the gold answer; one that does not (it runs tests, say) owes nothing to
            other phrasings of it.
    """

    name: str
    weight: float
    aspect: str | None
    reads_gold: bool = True


@dataclass(frozen=True)
class TriedRow:
    """One row with its corpus and the scores given to it.

    Attributes:
        row: the row.
        samples: its corpus, honest completions first.
        scores: reward name -> one score a sample; None where a reward does not apply or failed.
        unscored: places of samples on which some reward failed or was not tried, so that they have no total.
    """

    row: Row
    samples: Sequence[Sample]
    scores: Scores
    unscored: frozenset[int] = frozenset()


@dataclass(frozen=True)
class TableLine:
    """One kind of completion over all rows.

    Attributes:
        kind: its short name.
        title: in words.
        honest: whether it deserves full marks.
        rows: in how many rows it occurs.
        means: reward name (and `total`) -> mean score; None where no reward applied.
        flagged: names of the rewards (or `total`) with a finding of this kind.
    """

    kind: str
    title: str
    honest: bool
    rows: int
    means: Mapping[str, float | None]
    flagged: frozenset[str]


def judge_traps(rewards: Sequence[Held], tried: Sequence[TriedRow]) -> list[Finding]:
    """Findings over all rows, one for each reward and kind, with the first row as the example.

    Args:
        rewards: the run's, in the config's order.
        tried: rows whose corpus was scored.
    """
    weights = {reward.name: reward.weight for reward in rewards}
    findings: list[Finding] = []
    for held in [*rewards, Held(TOTAL, 1.0, None, all(reward.reads_gold for reward in rewards))]:
        if held.aspect is None and held.name != TOTAL:
            continue
        seen: dict[tuple[str, Level], list[_Seen]] = {}
        judged = 0
        for row in tried:
            scores = totals(row, weights) if held.name == TOTAL else row.scores[held.name]
            if any(score is not None for sample, score in zip(row.samples, scores, strict=True) if sample.honest):
                judged += 1
                for found in _judge_row(held, row, scores):
                    seen.setdefault((found.kind, found.level), []).append(found)
        if judged == 0 and tried:
            sentence = f"{held.name}: gave no score to any honest completion"
            severity: Level = "failure" if held.name == TOTAL else "warning"
            findings.append(Finding(f"{held.name}/never_applies", severity, sentence))
        for (kind, level), cases in sorted(seen.items(), key=lambda item: not item[1][0].honest):
            level = "warning" if held.weight == 0 else level
            findings.append(Finding(f"{held.name}/{kind}", level, _in_words(held.name, cases, judged)))
    return findings


def judge_stage(
    stage: str, weights: Mapping[str, float], rewards: Sequence[Held], tried: Sequence[TriedRow]
) -> list[Finding]:
    """Findings about the total of one stage, which weighs the rewards in its own way.

    A stage that rewards form only need not tell right from wrong; it is held to the traps of what it does reward.

    Args:
        stage: its name.
        weights: weight by reward name in this stage; a reward not named has none.
        rewards: the run's.
        tried: rows whose corpus was scored.
    """
    whole = {reward.name: float(weights.get(reward.name, 0.0)) for reward in rewards}
    aspects = {reward.aspect for reward in rewards if whole[reward.name] > 0} & set(_STRICT)
    seen: dict[str, list[_Seen]] = {}
    for row in tried:
        pairs = [(s, score) for s, score in zip(row.samples, totals(row, whole), strict=True) if score is not None]
        best = max((score for sample, score in pairs if sample.honest), default=None)
        for sample, score in pairs:
            if best is None or sample.honest or not aspects & set(sample.broken) or score < best - _SAME:
                continue
            more = "more than" if score > best + _SAME else "as much as"
            verdict = f"is paid {score:g}, {more} the best honest completion"
            found = _Seen(sample.kind, "failure", sample.title, sample.shown, verdict, row.row, honest=False)
            seen.setdefault(sample.kind, []).append(found)
    return [
        Finding(f"stage-{stage}/{kind}", "failure", _in_words(f"stage {stage}", cases, len(tried)))
        for kind, cases in seen.items()
    ]


def totals(row: TriedRow, weights: Mapping[str, float]) -> list[float | None]:
    """The weighted total of each sample of a row."""
    return [
        None if index in row.unscored else weighted_total({name: row.scores[name][index] for name in weights}, weights)
        for index in range(len(row.samples))
    ]


def score_table(rewards: Sequence[Held], tried: Sequence[TriedRow], findings: Sequence[Finding]) -> list[TableLine]:
    """Mean score of each kind of completion for each reward and the total, honest kinds first."""
    weights = {reward.name: reward.weight for reward in rewards}
    flagged = {finding.name for finding in findings if finding.level == "failure"}
    kinds: dict[str, Sample] = {}
    columns: dict[str, dict[str, list[float]]] = {}
    names = [*weights, TOTAL]
    rows: dict[str, int] = {}
    for row in tried:
        by_name = {**row.scores, TOTAL: totals(row, weights)}
        for index, sample in enumerate(row.samples):
            kinds.setdefault(sample.kind, sample)
            rows[sample.kind] = rows.get(sample.kind, 0) + 1
            for name, scores in by_name.items():
                cell = columns.setdefault(sample.kind, {name: [] for name in names})[name]
                if (score := scores[index]) is not None:
                    cell.append(score)
    lines = [
        TableLine(
            kind=kind,
            title=sample.title,
            honest=sample.honest,
            rows=rows[kind],
            means={name: fmean(cell) if cell else None for name, cell in columns[kind].items()},
            flagged=frozenset(name for name in columns[kind] if f"{name}/{kind}" in flagged),
        )
        for kind, sample in kinds.items()
    ]
    return sorted(lines, key=lambda line: not line.honest)


@dataclass(frozen=True)
class _Seen:
    """One finding in one row: what was scored, and against what."""

    kind: str
    level: Level
    subject: str
    shown: str
    verdict: str
    row: Row
    honest: bool


def _judge_row(held: Held, row: TriedRow, scores: Sequence[float | None]) -> list[_Seen]:
    sign = -1.0 if held.weight < 0 else 1.0
    pairs = [(s, sign * score) for s, score in zip(row.samples, scores, strict=True) if score is not None]
    honest = [
        (sample, score)
        for sample, score in pairs
        if sample.honest and sample.only in (None, held.aspect) and (held.reads_gold or not sample.rephrased)
    ]
    traps = [(s, score) for s, score in pairs if not s.honest and (held.name == TOTAL or held.aspect in s.broken)]
    if not traps or not honest:
        return []
    best = max(score for _, score in honest)
    strict = held.name == TOTAL or held.aspect in _STRICT
    if strict and best <= min(score for _, score in traps) + _SAME:
        blind = f"scored alike, {sign * best:g}: it does not see the {held.aspect or 'difference'}"
        return [_Seen("blind", "failure", "honest completions and traps", "", blind, row.row, honest=False)]
    found = []
    beaten = [pair for pair in traps if pair[1] < best - _SAME]
    for sample, score in traps:
        if score >= best - _SAME:
            more = "more than" if score > best + _SAME else "as much as"
            verdict = f"is paid in full: {sign * score:g}, {more} the best honest completion"
            level: Level = "failure" if strict or score > best + _SAME else "warning"
            found.append(_Seen(sample.kind, level, sample.title, sample.shown, verdict, row.row, honest=False))
    worst = max(beaten, key=lambda pair: pair[1], default=None)
    for sample, score in honest if strict else ():
        subject, shown = (sample.title, "") if sample.shown == row.row.gold else (_HONEST, sample.shown)
        if worst is not None and score <= worst[1] + _SAME:
            trap = f"{worst[0].title} ({_short(worst[0].shown)})" if worst[0].shown else worst[0].title
            verdict = f"scored {sign * score:g}, wrong: no more than this trap: {trap}, {sign * worst[1]:g}"
            found.append(_Seen(sample.kind, "failure", subject, shown, verdict, row.row, honest=True))
        elif score < best - _SAME and held.name != TOTAL:
            verdict = f"scored {sign * score:g}, less than the best honest completion ({sign * best:g})"
            found.append(_Seen(sample.kind, "warning", subject, shown, verdict, row.row, honest=True))
    return found


def _in_words(name: str, cases: Sequence[_Seen], judged: int) -> str:
    """One sentence for all rows, with examples of honest phrasings from several."""
    first = cases[0]
    shown = [_short(text) for text in dict.fromkeys(case.shown for case in cases if case.shown)]
    subject = first.subject
    if shown and subject == _HONEST:
        subject += " " + ", ".join(shown[:_EXAMPLES]) + (" and the like" if len(shown) > _EXAMPLES else "")
    elif shown:
        subject += f" ({shown[0]})"
    where = f"{first.row.label}, gold {_short(first.row.gold)}; {len(cases)} of {judged} rows"
    return f"{name}: {subject} {first.verdict} ({where})"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return f"`{line if len(line) <= 60 else line[:57] + '...'}`"

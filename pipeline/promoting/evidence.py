"""What speaks for and against promoting a version: its verdict, and its answers against the champion's, row by row.

Called by promotion.py. Gates are held against the bound of a paired interval, as the judge's are: the version may not
be worse than the champion by more than the margin. Refuses to compare evaluations made differently.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from components.errors import BadInputError
from components.storage.config import StoreConfig
from components.storage.store import default_cache, open_store
from pipeline.promoting.registered import RegisteredVersion, read_stored_evaluation

if TYPE_CHECKING:
    from components.judge_candidate.pairs import StoredEvaluation

COMPARED = {"accuracy_strict": ("correct_strict", "strict accuracy"), "format_compliance": ("strict", "format")}
"""Metrics a new champion may not lose: name -> column of the samples, words."""

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Finding:
    """One gate of a promotion.

    Attributes:
        name: verdict, champion, or a metric.
        passed: whether it speaks for the version.
        sentence: what was found.
    """

    name: str
    passed: bool
    sentence: str

    def __str__(self) -> str:
        return f"{'pass' if self.passed else 'fail'}: {self.sentence}"


def judge_promotion(
    version: RegisteredVersion, champion: RegisteredVersion | None, store: StoreConfig, margin: float
) -> list[Finding]:
    """The gates of a promotion.

    Args:
        version: to be promoted.
        champion: what is served now; None for nothing.
        store: the artifact store.
        margin: how much of a share the version may fall behind the champion.
    """
    verdict = version.tags.get("verdict", "absent")
    findings = [Finding("verdict", verdict == "pass", f"the verdict of {version} against its base model is {verdict}")]
    if champion is None or champion.version == version.version:
        return findings
    candidate = read_stored_evaluation(version.evaluation, store)
    try:
        served = comparable_evaluation(champion, candidate, store)
    except BadInputError as error:
        findings.append(
            Finding(
                "champion",
                False,
                f"{version} and the champion {champion} were not evaluated alike ({error}); evaluate the champion as "
                f"{version} was: grpo evaluate {champion} --like {version}",
            )
        )
        return findings
    return findings + compare_with_champion(served, candidate, champion, version, margin)


def compare_with_champion(
    served: "StoredEvaluation",
    candidate: "StoredEvaluation",
    champion: RegisteredVersion,
    version: RegisteredVersion,
    margin: float,
) -> list[Finding]:
    """Paired differences on the same rows, greedy.

    Args:
        served: the champion's evaluation.
        candidate: the version's.
        champion: its name, for the sentence.
        version: its name.
        margin: how much of a share the version may fall behind.
    """
    from components.judge_candidate.gates import compare
    from components.judge_candidate.pairs import pair

    pairs = pair(served.samples, candidate.samples, "greedy")
    findings = []
    for name, (column, words) in COMPARED.items():
        found = compare(pairs, column, CONFIDENCE)
        ends = found.difference
        sentence = (
            f"{words} {found.base.value:.1%} (champion {champion}) -> {found.candidate.value:.1%} ({version}): "
            f"{ends.value * 100:+.1f} points [{ends.low * 100:+.1f}, {ends.high * 100:+.1f}] "
            f"on {len(pairs.ids):,} rows, {found.wins} won, {found.losses} lost; "
            f"more than {-margin * 100:+.1f} is asked for"
        )
        findings.append(Finding(name, ends.low > -margin, sentence))
    return findings


def comparable_evaluation(
    champion: RegisteredVersion, candidate: "StoredEvaluation", store: StoreConfig
) -> "StoredEvaluation":
    """The champion's evaluation that was made as the candidate's: the one it was registered with, else a later one.

    Args:
        champion: the champion.
        candidate: the version's evaluation.
        store: where `grpo evaluate` left others.

    Raises:
        BadInputError: there is none; says what differs.
    """
    from components.judge_candidate.pairs import refuse_incomparable

    own = read_stored_evaluation(champion.evaluation, store)
    try:
        refuse_incomparable(own.settings, candidate.settings)
    except BadInputError as error:
        later = _evaluated_later(champion, candidate, store)
        if later is not None:
            return later
        told = str(error).removeprefix("base and candidate cannot be compared: ").rpartition("; ")[0]
        told = told.replace("for the base", "for the champion").replace("for the candidate", "for the version")
        raise BadInputError(told) from error
    return own


def _evaluated_later(
    champion: RegisteredVersion, candidate: "StoredEvaluation", store: StoreConfig
) -> "StoredEvaluation | None":
    from components.judge_candidate.pairs import read_evaluation, refuse_incomparable

    opened = open_store(store)
    for key in opened.keys(f"evaluations/{str(candidate.settings['holdout_fingerprint'])[:12]}"):
        if opened.read_manifest(key).provenance.get("model") != champion.weights.digest:
            continue
        reference = opened.find(key)
        if reference is None:
            continue
        found = read_evaluation(opened.fetch(reference, default_cache()))
        try:
            refuse_incomparable(found.settings, candidate.settings)
        except BadInputError:
            continue
        return found
    return None

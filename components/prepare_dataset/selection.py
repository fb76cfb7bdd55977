"""Which clean row goes where: duplicates, too long prompts, leaks and the seeded split, on a few bytes a row.

Called by `prepare_dataset` with what `scan` found. The split takes the rows whose question's key, mixed with the seed,
is smallest: it has exactly the asked size (but for rows that ask the same question, which stay together), does not
depend on the order of rows, and a row added to the data moves at most one of each split. Refuses shares above the
config's limits and a split that would leave nothing to train on.
"""

from dataclasses import dataclass, field

import numpy as np

from components.errors import BadInputError
from components.prepare_dataset.cleaning import FIRST_SHOWN, Offence
from components.prepare_dataset.config import DataConfig
from components.prepare_dataset.keys import is_in, repeats
from components.prepare_dataset.overlap import NearIndex
from components.prepare_dataset.scan import ScannedSource

_MOST_SPLIT_ROWS = 1000


@dataclass
class Selection:
    """Rows of one source that are still in, and why others are not.

    Attributes:
        source: the scanned source.
        keep: bool of each clean row.
        dropped: count by reason, in the order of the checks.
        first: first offending rows by reason.
    """

    source: ScannedSource
    keep: np.ndarray
    dropped: dict[str, int] = field(default_factory=dict)
    first: dict[str, tuple[Offence, ...]] = field(default_factory=dict)

    def drop(self, reason: str, out: np.ndarray, first: tuple[Offence, ...]) -> None:
        """Take rows out and note why.

        Args:
            reason: `duplicate`, `overlong`, `overlap` or `near_overlap`.
            out: bool of each clean row.
            first: the first of them.
        """
        self.dropped[reason] = self.dropped.get(reason, 0) + int(np.count_nonzero(out & self.keep))
        self.first[reason] = (self.first.get(reason, ()) + first)[:FIRST_SHOWN]
        self.keep &= ~out


def select_clean(source: ScannedSource, data: DataConfig) -> Selection:
    """Leave out repeated and too long rows of a source.

    Args:
        source: what the first pass found.
        data: the limits.

    Raises:
        BadInputError: when there are more of them than the config allows, or nothing is left.
    """
    selection = Selection(source, np.ones(len(source), dtype=bool))
    if len(source) == 0:
        raise BadInputError(f"data.{source.name}: every one of the {source.rows_read} rows is broken; nothing is left")
    # Rows are the same when question and answer are; odd multipliers keep the mix of two keys a bijection in each.
    repeated = repeats(
        len(source),
        lambda rows: (
            source.question_keys[rows] * np.uint64(0x9E3779B97F4A7C15)
            ^ source.answer_keys[rows] * np.uint64(0xC2B2AE3D27D4EB4F)
        ),
    )
    share = np.count_nonzero(repeated) / len(source)
    offences = _offences(source, repeated, "question", "repeats an earlier row")
    if share > data.max_duplicate_share:
        raise BadInputError(
            f"data.{source.name}: {np.count_nonzero(repeated)} of {len(source)} rows repeat another's question and "
            f"answer ({share:.1%}, allowed {data.max_duplicate_share:.1%}): {offences[0]}. Remove them, or raise "
            "data.max_duplicate_share to drop them"
        )
    if offences:
        selection.drop("duplicate", repeated, offences)
    overlong = source.tokens > data.max_prompt_tokens
    share = np.count_nonzero(overlong) / len(source)
    if share > data.max_overlong_share:
        offences = _offences(source, overlong, "question", f"makes a prompt over {data.max_prompt_tokens} tokens")
        raise BadInputError(
            f"data.{source.name}: {np.count_nonzero(overlong)} of {len(source)} prompts are over "
            f"data.max_prompt_tokens: {data.max_prompt_tokens} ({share:.1%}, allowed {data.max_overlong_share:.1%}; "
            f"the longest has {int(source.tokens.max())}): {offences[0]}. Raise data.max_prompt_tokens, or "
            "data.max_overlong_share to drop them"
        )
    if share:
        selection.drop(
            "overlong",
            overlong,
            _offences(
                source, overlong & selection.keep, "question", f"makes a prompt over {data.max_prompt_tokens} tokens"
            ),
        )
    if not selection.keep.any():
        raise BadInputError(f"data.{source.name}: no row is left of {source.rows_read}; see data.max_prompt_tokens")
    return selection


def split_from_train(train: Selection, data: DataConfig) -> dict[str, Selection]:
    """Take validation and holdout out of train, where the config gives no source for them.

    Args:
        train: the clean rows of train; those taken are no longer kept in it afterwards.
        data: sizes and seed.

    Returns:
        The splits taken, by name.

    Raises:
        BadInputError: when nothing would be left to train on.
    """
    available = int(np.count_nonzero(train.keep))
    wanted: dict[str, int] = {}
    for name, source, rows, share in (
        ("holdout", data.holdout, data.holdout_rows, data.holdout_share),
        ("validation", data.validation, data.validation_rows, data.validation_share),
    ):
        if source is None:
            wanted[name] = rows if rows is not None else min(_MOST_SPLIT_ROWS, max(1, int(available * share)))
    if sum(wanted.values()) >= available:
        asked = " and ".join(f"{rows} for {name}" for name, rows in wanted.items())
        raise BadInputError(
            f"data.train has {available} usable rows, and {asked} are taken from them: none is left to train on; give "
            f"more rows, or lower {' and '.join(f'data.{name}_rows' for name in wanted)}"
        )
    taken: dict[str, Selection] = {}
    if not wanted:
        return taken
    ranks = _mixed(train.source.question_keys, data.seed)
    for name, rows in wanted.items():
        if rows >= np.count_nonzero(train.keep):
            raise BadInputError(
                f"data.train: too few different questions to take {rows} for {name} and train on others; give more "
                f"rows, or lower data.{name}_rows"
            )
        limit = np.partition(ranks[train.keep], rows - 1)[rows - 1]
        keep = train.keep & (ranks <= limit)
        train.keep &= ~keep
        taken[name] = Selection(train.source, keep)
    if not train.keep.any():
        raise BadInputError("data.train: the rows ask too few different questions to leave any to train on; give more")
    return taken


def check_overlap(train: Selection, other: Selection, data: DataConfig, *, name: str, against: str) -> None:
    """Refuse, or drop from `train`, questions that a given source has too.

    Args:
        train: rows that must not hold the other's questions.
        other: rows of the given source.
        data: `overlap` says what happens.
        name: the split of `train` (train or validation).
        against: the split of `other` (validation or holdout).

    Raises:
        BadInputError: when there are any and `data.overlap` is `refuse`.
    """
    if train.source is other.source:
        return
    shared = is_in(train.source.question_keys, other.source.question_keys[other.keep]) & train.keep
    count = int(np.count_nonzero(shared))
    if count == 0:
        return
    offences = _offences(train.source, shared, "question", f"is also in {against}")
    if data.overlap == "refuse":
        twin = _twin(other, train.source.question_keys[np.flatnonzero(shared)[0]])
        raise BadInputError(
            f"data.{against}: {count} questions of {against} are also in {name}, so its scores would mean nothing: "
            f"{offences[0]} as {twin}. Remove them, or write data.overlap: drop to leave them out of {name}"
        )
    train.drop("overlap", shared, offences)


def check_near_overlap(
    train: Selection, index: NearIndex, data: DataConfig, *, name: str, against: str, wheres: list[str]
) -> int:
    """Refuse, or drop from `train`, questions that another split nearly has.

    Args:
        train: rows that must not hold the other's questions.
        index: the other's questions.
        data: `near_overlap` says what happens.
        name: the split of `train`.
        against: the split indexed.
        wheres: `file:line` of each indexed question.

    Returns:
        How many near copies there are, dropped or not.

    Raises:
        BadInputError: when there are any, and `data.near_overlap` is `refuse`.
    """
    near = np.zeros(len(train.source), dtype=bool)
    first: list[Offence] = []
    possible = train.keep & is_in(train.source.numbers_keys, index.numbers_keys)
    for start, batch in train.source.batches():
        kept = np.flatnonzero(possible[start : start + batch.num_rows])
        if not len(kept):
            continue
        questions = batch.column("question").take(kept).to_pylist()
        for place, question in zip(kept.tolist(), questions, strict=True):
            copy = index.find(question)
            if copy is not None:
                near[start + place] = True
                if len(first) < FIRST_SHOWN:
                    reason = f"is nearly {wheres[copy.position]} of {against} (similarity {copy.similarity:.2f})"
                    first.append(Offence(batch.column("where")[place].as_py(), "question", question[:80], reason))
    count = int(np.count_nonzero(near))
    if count and data.near_overlap == "refuse":
        raise BadInputError(
            f"data.{against}: {count} questions of {name} are near copies of {against}'s: {first[0]}. Remove them, or "
            f"write data.near_overlap: drop to leave them out of {name}"
        )
    if count and data.near_overlap == "drop":
        train.drop("near_overlap", near, tuple(first))
    elif count:
        train.first["near_overlap_kept"] = (train.first.get("near_overlap_kept", ()) + tuple(first))[:FIRST_SHOWN]
    return count


def questions_of(selection: Selection) -> tuple[list[str], list[str]]:
    """Questions and `file:line` of the rows that are in."""
    questions: list[str] = []
    wheres: list[str] = []
    for start, batch in selection.source.batches():
        kept = np.flatnonzero(selection.keep[start : start + batch.num_rows])
        if len(kept):
            questions += batch.column("question").take(kept).to_pylist()
            wheres += batch.column("where").take(kept).to_pylist()
    return questions, wheres


def conflicting_rows(selection: Selection) -> int:
    """Rows kept whose question another kept row answers otherwise."""
    keys = selection.source.question_keys[selection.keep]
    keys.sort()
    return int(np.count_nonzero(keys[1:] == keys[:-1]))


def _offences(source: ScannedSource, rows: np.ndarray, name: str, reason: str) -> tuple[Offence, ...]:
    wanted = np.flatnonzero(rows)[:FIRST_SHOWN]
    found: list[Offence] = []
    if not len(wanted):
        return ()
    for start, batch in source.batches():
        for place in wanted[(wanted >= start) & (wanted < start + batch.num_rows)] - start:
            value = batch.column(name)[int(place)].as_py()
            found.append(Offence(batch.column("where")[int(place)].as_py(), name, value[:80], reason))
        if len(found) == len(wanted):
            break
    return tuple(found)


def _twin(other: Selection, key: np.uint64) -> str:
    mask = (other.source.question_keys == key) & other.keep
    return _offences(other.source, mask, "question", "")[0].where


def _mixed(keys: np.ndarray, seed: int) -> np.ndarray:
    """Keys shuffled by a seed: the finaliser of splitmix64 (Steele et al. 2014), a bijection on 64 bits."""
    mixed = keys + np.uint64((seed * 0x9E3779B97F4A7C15 + 0x9E3779B97F4A7C15) % 2**64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed ^= mixed >> np.uint64(shift)
        mixed *= np.uint64(factor)
    mixed ^= mixed >> np.uint64(31)
    return mixed

"""When two questions are the same, and when nearly so: the keys of exact comparison and the index of near copies.

Called by `scan` (keys) and `prepare_dataset` (near copies of the holdout and of validation in train).

The same: equal words, numbers and signs after Unicode folding, but for case, spaces and the marks . , ; : ! ? and quotes.
Nearly the same: the same numbers in the same order, and a weighted Jaccard similarity of three-word runs above a
threshold, with weights log((N + 10) / (df + 1)) of a run found in df of the N indexed questions, so that the wording of
a template counts for little. Problems made from one template with other numbers are therefore never near copies, nor
are copies whose sentences changed places. The search is exact: prefix filtering (Chaudhuri et al. 2006; Bayardo et al.
2007) looks only at the heaviest runs, without which the threshold cannot be reached. Memory: about 8 KB a question
indexed (holdout and validation), none for a question compared (train).
"""

import math
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

_TOKEN = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?(?![\d,])|\d+(?:\.\d+)?|[^\W\d]+|[^\w\s]")
_SOFT = frozenset(".,;:!?'\"`´‘’“”…")
_SPELLED = {
    word: str(number)
    for number, word in enumerate(
        ["two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"], start=2
    )
}
_RUN = 3


def tokens_of(text: str) -> list[str]:
    """Words, numbers (without thousands separators) and signs of a text, folded for comparison."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
    found = (token for token in _TOKEN.findall(text.casefold()) if token not in _SOFT)
    return [token.replace(",", "") if token[0].isdigit() else token for token in found]


def text_key(text: str) -> bytes:
    """8 bytes that are equal for questions that are the same (two different ones collide once in 10^19)."""
    return blake2b(" ".join(tokens_of(text)).encode("utf-8"), digest_size=8).digest()


@dataclass(frozen=True)
class NearCopy:
    """An indexed question that a given one nearly repeats.

    Attributes:
        position: place of the indexed question in the order given to `NearIndex`.
        similarity: weighted Jaccard similarity, from the threshold to 1.
    """

    position: int
    similarity: float


@dataclass
class _Block:
    rows: list[int] = field(default_factory=list)
    postings: dict[int, list[int]] = field(default_factory=dict)


class NearIndex:
    """Questions that others are compared with."""

    def __init__(self, questions: Iterable[str], similarity: float):
        """Index questions.

        Args:
            questions: those of the holdout, or of validation.
            similarity: least weighted Jaccard similarity of a near copy, above 0 and at most 1.
        """
        self._similarity = similarity
        self._numbers_of_runs: dict[str, int] = {}
        counts: list[int] = []
        self._runs: list[list[int]] = []
        self._blocks: dict[tuple[str, ...], _Block] = {}
        for position, question in enumerate(questions):
            words = _words(question)
            runs = []
            for run in _run_texts(words):
                number = self._numbers_of_runs.setdefault(run, len(counts))
                if number == len(counts):
                    counts.append(0)
                counts[number] += 1
                runs.append(number)
            self._runs.append(runs)
            block = self._blocks.setdefault(_numbers(words), _Block())
            block.rows.append(position)
            for number in runs:
                block.postings.setdefault(number, []).append(position)
        total = len(self._runs)
        self._weights = [math.log((total + 10) / (count + 1)) for count in counts]
        self._weight_unknown = math.log(total + 10)
        self._totals = [sum(self._weights[number] for number in runs) for runs in self._runs]

    def __len__(self) -> int:
        """Number of questions indexed."""
        return len(self._runs)

    def find(self, question: str) -> NearCopy | None:
        """The indexed question that this one is most similar to, if it is a near copy of any (the first one of equals)."""
        words = _words(question)
        block = self._blocks.get(_numbers(words))
        if block is None:
            return None
        texts = _run_texts(words)
        known = [number for text in texts if (number := self._numbers_of_runs.get(text)) is not None]
        weight_unknown = self._weight_unknown * (len(texts) - len(known))
        total = weight_unknown + sum(self._weights[number] for number in known)
        # Whoever shares none of the runs seen so far lacks their weight; beyond this much it cannot be similar enough.
        allowance = (1 - self._similarity) * total
        lacking = weight_unknown
        candidates: set[int] = set()
        for number in sorted(known, key=lambda number: -self._weights[number]):
            if lacking > allowance:
                break
            candidates.update(block.postings.get(number, ()))
            lacking += self._weights[number]
        best: NearCopy | None = None
        own = set(known)
        for position in sorted(candidates):
            shared = sum(self._weights[number] for number in self._runs[position] if number in own)
            similarity = shared / (total + self._totals[position] - shared)
            if similarity >= self._similarity and (best is None or similarity > best.similarity):
                best = NearCopy(position, similarity)
        return best


def _words(text: str) -> list[str]:
    return [_SPELLED.get(token, token) for token in tokens_of(text)]


def _numbers(words: Sequence[str]) -> tuple[str, ...]:
    return tuple(word for word in words if word[0].isdigit())


def _run_texts(words: Sequence[str]) -> list[str]:
    """The distinct runs of three words, in order; one run of all words when there are fewer."""
    if len(words) <= _RUN:
        return [" ".join(words)]
    return list(dict.fromkeys(map(" ".join, zip(words, words[1:], words[2:], strict=False))))

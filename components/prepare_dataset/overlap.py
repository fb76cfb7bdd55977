"""When two questions are the same, and when nearly so: the keys of exact comparison and the index of near copies.

Called by `scan` (keys) and `prepare_dataset` (near copies of the holdout and of validation in train).

The same: equal words, numbers and signs after Unicode folding, but for case, spaces, the marks . , ; : ! ? and quotes.
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

import numpy as np

_TOKEN = re.compile(r"[^\W\d]+|\d{1,3}(?:,\d{3})+(?:\.\d+)?(?![\d,])|\d+(?:\.\d+)?|[^\w\s.,;:!?'\"`´‘’“”…]")
_SPELLED = {
    "two": "2",
    "three": "3",
    "four": "4",
    "five": "5",
    "six": "6",
    "seven": "7",
    "eight": "8",
    "nine": "9",
    "ten": "10",
    "eleven": "11",
    "twelve": "12",
}
_RUN = 3
_SMALL_BLOCK = 16


def tokens_of(text: str) -> list[str]:
    """Words, numbers (without thousands separators) and signs of a text, folded for comparison."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
    found: list[str] = _TOKEN.findall(text.casefold())
    # Only a number can still hold a comma.
    return [token.replace(",", "") for token in found] if "," in "".join(found) else found


def text_key(tokens: Sequence[str]) -> bytes:
    """8 bytes that are equal for texts that are the same (two different ones collide once in 10^19).

    Args:
        tokens: `tokens_of` the text.
    """
    return blake2b(" ".join(tokens).encode(), digest_size=8).digest()


def numbers_key(tokens: Sequence[str]) -> bytes:
    """4 bytes that are equal for texts with the same numbers in the same order (two to twelve may be spelled).

    Args:
        tokens: `tokens_of` the text.
    """
    return blake2b(" ".join(_numbers(tokens)).encode(), digest_size=4).digest()


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
    """Indexed questions with the same numbers; postings (run -> positions) only once there are many."""

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
        self._run_numbers: dict[str, int] = {}
        self._runs: list[np.ndarray] = []
        self._blocks: dict[tuple[str, ...], _Block] = {}
        numbers: list[bytes] = []
        for position, question in enumerate(questions):
            tokens = tokens_of(question)
            numbered = self._run_numbers
            runs = [numbered.setdefault(run, len(numbered)) for run in _run_texts(tokens)]
            self._runs.append(np.array(runs, dtype=np.int32))
            numbers.append(numbers_key(tokens))
            self._blocks.setdefault(_numbers(tokens), _Block()).rows.append(position)
        counts = np.zeros(len(self._run_numbers), dtype=np.int32)
        for own in self._runs:
            counts[own] += 1
        total = len(self._runs)
        self._weights = np.log((total + 10) / (counts + 1))
        self._weight_unknown = math.log(total + 10)
        self._totals = [float(self._weights[own].sum()) for own in self._runs]
        self.numbers_keys = np.frombuffer(b"".join(numbers), dtype="<u4")
        """uint32 `numbers_key` of every indexed question: no other question can be a near copy."""

    def __len__(self) -> int:
        """Number of questions indexed."""
        return len(self._runs)

    def find(self, question: str) -> NearCopy | None:
        """The indexed question that this one is a near copy of and most similar to (the first of equals), if any."""
        tokens = tokens_of(question)
        block = self._blocks.get(_numbers(tokens))
        if block is None:
            return None
        texts = _run_texts(tokens)
        known = np.array([number for text in texts if (number := self._run_numbers.get(text)) is not None], np.int32)
        unknown = self._weight_unknown * (len(texts) - len(known))
        total = unknown + float(self._weights[known].sum())
        best: NearCopy | None = None
        for position in self._candidates(block, known, unknown, total):
            shared = float(self._weights[np.intersect1d(self._runs[position], known, assume_unique=True)].sum())
            similarity = shared / (total + self._totals[position] - shared)
            if similarity >= self._similarity and (best is None or similarity > best.similarity):
                best = NearCopy(position, similarity)
        return best

    def _candidates(self, block: _Block, known: np.ndarray, unknown: float, total: float) -> list[int]:
        """Positions that can reach the similarity, ascending."""
        # Whoever shares none of the runs seen so far lacks their weight; beyond this much it cannot be similar enough.
        allowance = (1 - self._similarity) * total
        if unknown > allowance:
            return []
        if len(block.rows) <= _SMALL_BLOCK:
            return block.rows
        if not block.postings:
            for position in block.rows:
                for number in self._runs[position].tolist():
                    block.postings.setdefault(number, []).append(position)
        found: set[int] = set()
        lacking = unknown
        weights = self._weights[known]
        for place in np.argsort(-weights, kind="stable"):
            if lacking > allowance:
                break
            found.update(block.postings.get(int(known[place]), ()))
            lacking += float(weights[place])
        return sorted(found)


def _numbers(tokens: Sequence[str]) -> tuple[str, ...]:
    return tuple([_SPELLED.get(token, token) for token in tokens if "0" <= token < ":" or token in _SPELLED])


def _run_texts(tokens: Sequence[str]) -> list[str]:
    """The distinct runs of three tokens, in order; one run of all of them when there are fewer."""
    words = [_SPELLED.get(token, token) for token in tokens]
    if len(words) <= _RUN:
        return [" ".join(words)]
    return list(dict.fromkeys(map(" ".join, zip(words, words[1:], words[2:], strict=False))))

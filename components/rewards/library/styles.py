"""Rewards for how a response is written. Weak signals, easy to please: keep their weights small."""

import re
import unicodedata
from collections import Counter
from collections.abc import Sized
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, field_validator

from components.rewards.definition import Aspect, Scorer, library_entry
from components.sections import Section

if TYPE_CHECKING:
    from components.contract import Contract

TAG = re.compile(r"</?[A-Za-z_][\w.-]{0,63}>")
TOKEN = re.compile(r"\w+|[^\w\s]")
LONGEST_WORD = 24
"""A longer run without white space is taken character by character: Chinese, Japanese, and `aaaa...`."""
SENTENCE = re.compile(r"(?<=[.!?。！？])\s+|[\n\r]+|(?<=[。！？])")


class RepetitionOptions(Section):
    """Settings of `repetition_penalty`."""

    ngram: Annotated[int, Field(ge=1, le=20)] = 3
    """Length, in words and signs, of the sequences that should not come again."""


@library_entry(aspect=Aspect.STYLE, low=-1.0, high=0.0, weight=0.5, options=RepetitionOptions)
def repetition_penalty(contract: "Contract", options: RepetitionOptions) -> Scorer:
    """0 when no three words in a row come twice, towards -1 the more of the text repeats itself.

    -(1 - distinct n-grams / n-grams), as in arXiv 2502.03373, appendix C.2, and `trl.rewards`; over words instead of
    token ids, so that a text scores alike in training, in the smoke test and in evaluation.
    """

    def score(text: str) -> float:
        words = _tokens(TAG.sub(" ", text))
        grams = list(zip(*(words[start:] for start in range(options.ngram)), strict=False))
        return len(set(grams)) / len(grams) - 1.0 if grams else 0.0

    return score


CONNECTIVES = (
    "first", "second", "third", "next", "then", "so", "because", "since", "therefore", "thus", "hence", "finally",
    "now", "after", "if", "which", "means", "gives", "step", "let", "we",
)  # fmt: skip


class ReasoningStepsOptions(Section):
    """Settings of `reasoning_steps`."""

    wanted: Annotated[int, Field(ge=1, le=50)] = 3
    """Steps for the full reward."""
    connectives: tuple[str, ...] = CONNECTIVES
    """Words that mark a step; the default is English. A calculation or a list number marks one in any language."""


@library_entry(aspect=Aspect.STYLE, weight=0.3, options=ReasoningStepsOptions)
def reasoning_steps(contract: "Contract", options: ReasoningStepsOptions) -> Scorer:
    """The share of the wanted number of distinct steps: sentences with a connective, a calculation or a number.

    A step needs three different words or numbers that are no connectives, and more of them than connectives, so that a
    string of connectives is none; the same sentence twice is one step.
    """
    marks = frozenset(word.casefold() for word in options.connectives)

    def score(text: str) -> float:
        answer = contract.read_answer(text)
        body = text if answer is None else text[: text.rfind(answer)]
        steps = {step for sentence in SENTENCE.split(TAG.sub("\n", body)) if (step := _step(sentence, marks))}
        return min(1.0, len(steps) / options.wanted)

    return score


NUMBERED = re.compile(r"\s*(?:\d{1,2}[.)]|[-*•]|step\s+\d{1,2})\s+\S", re.IGNORECASE)
CALCULATION = re.compile(r"\d\s*[-+*/×÷=−]\s*\S")


def _step(sentence: str, marks: frozenset[str]) -> frozenset[str] | None:
    """The content words of a sentence that is a step."""
    words = [word.casefold() for word in TOKEN.findall(sentence) if word[0].isalnum()]
    content = frozenset(word for word in words if word not in marks)
    connectives = sum(word in marks for word in words)
    marked = connectives > 0 or NUMBERED.match(sentence) or CALCULATION.search(sentence)
    return content if marked and len(content) >= 3 and len(content) > connectives else None


class CitationOptions(Section):
    """Settings of `citation`."""

    wanted: Annotated[int, Field(ge=1, le=50)] = 1
    """Different sources to cite for the full reward."""
    pattern: str = r"\[(\d{1,3})\]"
    """Regular expression of a citation; its first group names the source."""

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, value: str) -> str:
        try:
            groups = re.compile(value).groups
        except re.error as error:
            raise ValueError(f"{value!r} is not a regular expression: {error}") from None
        if groups < 1:
            raise ValueError(f"{value!r} has no group that names the source, as in '\\[(\\d+)\\]'")
        return value


@library_entry(aspect=Aspect.STYLE, weight=0.3, optional=("sources",), options=CitationOptions)
def citation(contract: "Contract", options: CitationOptions) -> Scorer:
    """The share of the wanted number of sources cited behind a statement; a source that does not exist costs one.

    With a column `sources` (a list, or how many there are) only 1 to that number, or the listed names, are sources.
    A citation counts once, and behind at least three words that are none.
    """
    pattern = re.compile(options.pattern)

    def score(text: str, sources: Any) -> float:
        cited: set[str] = set()
        invented: set[str] = set()
        for sentence in SENTENCE.split(TAG.sub("\n", text)):
            found = {match[1] for match in pattern.finditer(sentence)}
            if not found or len(set(TOKEN.findall(pattern.sub(" ", sentence).casefold()))) < 3:
                continue
            for name in found:
                (cited if _is_source(name, sources) else invented).add(name)
        return max(0.0, min(len(cited), options.wanted) - len(invented)) / options.wanted

    return score


def _is_source(name: str, sources: Any) -> bool:
    if sources is None:
        return True
    count = len(sources) if isinstance(sources, Sized) else int(sources)
    if name.isdigit():
        return 1 <= int(name) <= count
    return isinstance(sources, list | tuple) and name in [str(source) for source in sources]


class LanguageOptions(Section):
    """Settings of `language_consistency`."""

    scripts: tuple[str, ...] = ()
    """Scripts the response may be in, by their Unicode names (latin, cyrillic, cjk, hiragana, arabic, ...).
    Default: those of the question."""

    @field_validator("scripts")
    @classmethod
    def _upper(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(script.upper() for script in value)


@library_entry(aspect=Aspect.STYLE, weight=0.3, optional=("question",), options=LanguageOptions)
def language_consistency(contract: "Contract", options: LanguageOptions) -> Scorer:
    """The share of letters in the script of the question; 0 without a letter.

    DeepSeek-R1's language consistency (arXiv 2501.12948) by script: it tells Chinese from English, not English from
    French. Tags, LaTeX commands and single letters (variables) do not count.
    """

    def score(text: str, question: Any) -> float | None:
        scripts = options.scripts or _main_scripts(str(question or ""))
        if not scripts:
            return None
        letters = _letters(text)
        total = letters.total()
        return sum(letters[script] for script in scripts) / total if total else 0.0

    return score


COMMAND = re.compile(r"\\[A-Za-z]+")
LETTERS = re.compile(r"[^\W\d_]+")


def _letters(text: str) -> Counter[str]:
    """Letters of a text by script; single Latin and Greek letters are variables and left out."""
    counts: Counter[str] = Counter()
    for word in LETTERS.findall(COMMAND.sub(" ", TAG.sub(" ", text))):
        if len(word) == 1 and _script(word) in {"LATIN", "GREEK"}:
            continue
        counts.update(_script(letter) for letter in word)
    return counts


def _main_scripts(text: str) -> tuple[str, ...]:
    letters = _letters(text)
    return tuple(script for script, count in letters.items() if count >= 0.1 * letters.total())


@lru_cache(maxsize=65_536)
def _script(letter: str) -> str:
    return unicodedata.name(letter, "UNKNOWN").split(" ", 1)[0]


def _tokens(text: str) -> list[str]:
    tokens: list[str] = []
    for token in TOKEN.findall(text.casefold()):
        if len(token) > LONGEST_WORD or ord(token[0]) > 0x2E7F:
            tokens.extend(token)
        else:
            tokens.append(token)
    return tokens

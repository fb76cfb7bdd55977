"""The corpus the rewards are tried on: honest completions in several phrasings, and traps, made from a run's own rows.

Called by `smoke_test_rewards` for each chosen row; `trap_checks` judges the scores. Everything is written through the
run's contract, so the corpus fits any format: the pieces around the reasoning and the answer are found by writing an
honest completion and taking it apart. The contract is also the judge of what was made: a phrasing is kept as honest
only when the contract reads it, finds it equal to the gold answer and strict in format; a trap is kept only when its
value is wrong or its format broken. What does not fit a contract (a thousands separator where answers are letters) so
falls away by itself.

Limits: it tries known ways of being fooled, not every way; and what the contract itself judges wrongly it cannot see.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from components.contract import Contract
from components.contract.number import read_number

GENERIC_REASONING = (
    "First, I note what is given and what is asked.\n"
    "Second, I work it out one step at a time and check the result.\n"
    "Therefore the result below follows."
)
LONG_REASONING = """\
First, I read the question twice and write down every quantity that it states, with its unit.
Second, I say in my own words what is asked for, so that I do not answer another question by mistake.
Third, I look for the relation between what is given and what is asked: which amounts are added, which are shared out.
Next, I work through the relation in order. Each line uses only what stands above it, and values stay exact to the end.
Then I check the outcome against the story: its size is plausible, its sign is right, and putting it back fits.
Because both ways agree, I keep it. Therefore the result below is what was asked for."""
_REASONING_MARK = "reasoning-goes-here"
_STRANGE = (
    "\u202e\u05de\u05e1\u05e4\u05e8 \u0661\u0662\u0663 \u200b\u200d\U0001d7d9 \ufdfd "
    "\U0001f469\u200d\U0001f467 e\u0301\u0323 \x00 \ufffd"
)
_LOOK_ALIKE = str.maketrans({"a": "\N{CYRILLIC SMALL LETTER A}", "e": "\N{CYRILLIC SMALL LETTER IE}"})
_LARGE = 100_000  # characters of a "100 kB" completion
_LENGTHS = (250, 1000, 4000)  # words of honest reasoning, for rewards that ask for a length
_LONGEST_GOLD = 60  # characters; a longer gold answer is prose or code, and is not rephrased


@dataclass(frozen=True)
class Row:
    """One training row as the corpus needs it.

    Attributes:
        label: how a person finds it again, such as `training row 17` or `train.jsonl:17`.
        prompt: chat messages.
        gold: the gold answer.
        columns: every column of the row that a reward may ask for, the gold answer among them.
    """

    label: str
    prompt: list[dict[str, str]]
    gold: str
    columns: Mapping[str, Any]


@dataclass(frozen=True)
class Sample:
    """One completion of the corpus.

    Attributes:
        kind: its short name, the second part of a finding's name (`thousands_comma`, `three_answer_blocks`).
        title: what it is, in words, for the table.
        text: the completion.
        shown: the telling part, quoted in findings (`1,250`).
        honest: whether it deserves full marks.
        broken: the aspects that are broken in it (empty for honest ones).
        only: the one aspect that an honest completion speaks for (a very long one says nothing about the total); None
            for all.
        rephrased: whether the gold answer is written in other words, which is nothing to a reward that does not
            compare with it.
    """

    kind: str
    title: str
    text: str
    shown: str
    honest: bool
    broken: frozenset[str]
    only: str | None = None
    rephrased: bool = False


@dataclass(frozen=True)
class _Draft:
    """A completion before the contract has said what it is."""

    kind: str
    title: str
    text: str
    shown: str
    also_breaks: frozenset[str] = frozenset()
    only: str | None = None
    rephrased: bool = False


@dataclass(frozen=True)
class _Pieces:
    """An honest completion taken apart: head + reasoning + middle + answer + tail."""

    head: str
    middle: str
    tail: str

    @property
    def opener(self) -> str:
        """What stands right before the answer: an opening tag, a key, a label or `\\boxed{`."""
        found = re.search(r"<[^<>/\s]{1,100}>\s*$", self.middle)
        return found.group() if found else self.middle[self.middle.rfind("\n") + 1 :]

    @property
    def closer(self) -> str:
        """What ends the answer block: the whole tail, without the end of an enclosing JSON object."""
        return self.tail.rstrip().removesuffix("}") if self.is_json else self.tail

    @property
    def is_json(self) -> bool:
        """Whether the format is one JSON object."""
        return self.head.lstrip().startswith("{")


def build_samples(contract: Contract, row: Row, others: Sequence[str], *, large: bool = True) -> list[Sample]:
    """The corpus for one row: honest completions first, then traps; each text once.

    Args:
        contract: the run's contract, which writes the texts and decides what counts as honest.
        row: the row they are made for.
        others: gold answers of other rows, for answers that are right elsewhere.
        large: whether to write the ones of 100 kB, too.

    Returns:
        Samples, the plain honest completion first; empty when no honest completion can be written for the row (then
        the row cannot tell a good reward from a bad one).
    """
    texts: set[str] = set()
    samples: list[Sample] = []
    for honest, drafts in ((True, _honest(contract, row, large)), (False, _traps(contract, row, others, large))):
        for draft in drafts:
            broken = _broken(contract, draft.text, row.gold)
            if draft.text in texts or honest == bool(broken):
                continue
            texts.add(draft.text)
            aspects = broken if honest else broken | draft.also_breaks
            samples.append(
                Sample(
                    kind=draft.kind,
                    title=draft.title,
                    text=draft.text,
                    shown=draft.shown,
                    honest=honest,
                    broken=aspects,
                    only=draft.only,
                    rephrased=draft.rephrased,
                )
            )
        if not samples or samples[0].kind != "plain":
            return []
    return samples


def _broken(contract: Contract, text: str, gold: str) -> frozenset[str]:
    answer = contract.read_answer(text)
    value = set() if answer is not None and contract.equal(answer, gold) else {"value"}
    return frozenset(value if contract.check(text).strict else value | {"format"})


# ---------------------------------------------------------------------------------------------- honest completions


def _honest(contract: Contract, row: Row, large: bool) -> Iterator[_Draft]:
    """What may be honest; `build_samples` keeps what the contract agrees with."""
    write, gold = contract.write, row.gold
    reasoning = _reasoning(contract, row)
    for kind, title, answer in _phrasings(gold):
        yield _Draft(kind, title, write(reasoning, answer), answer, rephrased=kind != "plain")
    pieces = _take_apart(contract, gold)
    if pieces is not None:
        head, middle, tail = pieces.head.strip(), re.sub(r"\s*\n\s*", "", pieces.middle), pieces.tail.strip()
        compact = f"{head}{GENERIC_REASONING}{middle}{gold}{tail}"
        yield _Draft("compact", "honest, without line breaks between the parts", compact, gold)
    around = f"\n{write(reasoning, gold)}\n\n"
    yield _Draft("white_space_around", "honest, with white space around it", around, gold)
    yield _Draft("one_line_reasoning", "honest, reasoning of one line", write("I add it up.", gold), gold)
    yield _Draft("long_reasoning", "honest, reasoning of several paragraphs", write(LONG_REASONING, gold), gold)
    listed = "\n".join(f"{number}. {line}" for number, line in enumerate(LONG_REASONING.split("\n"), start=1))
    yield _Draft("numbered_reasoning", "honest, reasoning as a numbered list", write(listed, gold), gold)
    for words in _LENGTHS if large else ():
        lines = (f"Step {n}: I add {n} to what I have, which makes {n * (n + 1) // 2}." for n in range(1, words // 11))
        text = write("\n".join(lines), gold)
        title = f"honest, reasoning of about {words} words"
        yield _Draft(f"{words}_words", title, text, gold, only="length")


def _reasoning(contract: Contract, row: Row) -> str:
    """The row's own worked solution where it has one that fits the format, else a general one."""
    solution = row.columns.get("solution")
    if isinstance(solution, str) and solution.strip():
        text = contract.write(solution.strip(), row.gold)
        if not _broken(contract, text, row.gold):
            return solution.strip()
    return GENERIC_REASONING


def _phrasings(gold: str) -> Iterator[tuple[str, str, str]]:
    """(kind, title, answer): ways a person might write this very answer."""
    yield "plain", "honest, plain", gold
    if len(gold) > _LONGEST_GOLD or "\n" in gold:
        return
    number = read_number(gold)
    if number is None:
        yield "upper_case", "honest, in capitals", gold.upper()
        yield "lower_case", "honest, in small letters", gold.lower()
        yield "in_brackets", "honest, in brackets", f"({gold})"
        parts = [part.strip() for part in gold.split(",")]
        yield "other_order", "honest, items in another order", ", ".join(reversed(parts))
        yield from _wrapped(gold)
        return
    value = Fraction(number)
    sign, size = "-" if value < 0 else "", number_text(abs(value))
    if "/" not in size:
        whole, _, decimals = size.partition(".")
        grouped = f"{int(whole):,}" + (f".{decimals}" if decimals else "")
        yield "thousands_comma", "honest, with a thousands separator", sign + grouped
        yield "thousands_latex", "honest, with a LaTeX thousands separator", sign + grouped.replace(",", "{,}")
        yield "currency", "honest, with a currency sign", f"{sign}${size}"
        yield "trailing_zeros", "honest, with zeros behind the point", f"{sign}{size}{'00' if decimals else '.00'}"
    if value.denominator != 1:
        fraction = f"{sign}\\frac{{{abs(value.numerator)}}}{{{value.denominator}}}"
        yield "latex_fraction", "honest, as a LaTeX fraction", fraction
    yield "unit_word", "honest, with a unit behind it", f"{sign}{size} apples"
    yield "label", "honest, with a variable before it", f"x = {sign}{size}"
    if sign:
        yield "unicode_minus", "honest, with a typographic minus", "\N{MINUS SIGN}" + size
    yield from _wrapped(gold)


def _wrapped(gold: str) -> Iterator[tuple[str, str, str]]:
    yield "boxed", "honest, in \\boxed{}", f"\\boxed{{{gold}}}"
    if gold[-1:].isalnum():
        yield "full_stop", "honest, with a full stop", f"{gold}."
    yield "bold", "honest, in markdown bold", f"**{gold}**"


# ------------------------------------------------------------------------------------------------------------ traps


def _traps(contract: Contract, row: Row, others: Sequence[str], large: bool) -> Iterator[_Draft]:
    """What may be a trap; `build_samples` drops what the contract finds honest."""
    write, gold = contract.write, row.gold
    reasoning = _reasoning(contract, row)
    wrong_answers = list(_wrong_answers(contract, gold, others))
    wrong = next((answer for _, _, answer in wrong_answers if not contract.equal(answer, gold)), "no answer")
    for kind, title, answer in wrong_answers:
        yield _Draft(kind, title, write(reasoning, answer), answer)
    pieces = _take_apart(contract, gold)
    if pieces is not None:
        yield from _rearranged(pieces, reasoning, gold, wrong)
        yield from _emptied(contract, pieces, gold)
    yield from _without_content(contract, row)
    plain = write(reasoning, gold)
    yield _Draft("no_format", "the bare answer without any format", gold, gold)
    yield _Draft("text_before", "text before the format", f"Sure! Here you go.\n{plain}", "Sure! Here you go.")
    essay = "\nI hope that this helps. Let me also say how I got here, at length and once more." * 5
    yield _Draft("text_behind", "an essay behind the answer", plain + essay, _start(essay))
    escaped = plain.replace("<", "&lt;").replace(">", "&gt;")
    yield _Draft("escaped", "the format in escaped characters", escaped, _start(escaped))
    yield _Draft("capitals", "the format in capitals", plain.upper(), _start(plain.upper()))
    yield _Draft("whole_twice", "the whole completion twice", f"{plain}\n{plain}", "")
    yield from _strange(contract, row, reasoning, wrong)
    if large:
        yield from _large(contract, reasoning, wrong)


def _wrong_answers(contract: Contract, gold: str, others: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """(kind, title, answer): answers that are wrong and might be paid."""
    number = read_number(gold)
    elsewhere = [other for other in others if not contract.equal(other, gold)]
    if number is not None:
        value, digits = Fraction(number), number_text(Fraction(number))
        yield "gold_plus_one", "answer off by one", number_text(value + 1)
    if elsewhere:
        yield "answer_of_another_row", "answer of another row", elsewhere[0]
    if number is not None:
        yield "sign_flipped", "answer with its sign flipped", number_text(-value)
        yield "near_miss", "answer off by a hundredth", number_text(value + Fraction(1, 100))
        yield "gold_inside", "right digits inside a longer number", f"1{digits.lstrip('-')}0"
        yield "scale_word", "right number with a scale word behind it", f"{digits} thousand"
        yield "negated", "right number as a bound", f"more than {digits}"
        yield "nan", "nan as the answer", "nan"
        yield "infinity", "infinity as the answer", "inf"
        first, second = number_text(value + 1), number_text(value + 2)
        yield "range", "range around the right answer", f"{number_text(value - 1)} to {first}"
    else:
        yield "negated", "right answer denied", f"anything but {gold}"
        first, second = (elsewhere[0], elsewhere[-1]) if elsewhere else ("something else", "nothing at all")
    yield "shotgun", "several answers in one block, the right one first", f"{gold} or {first} or {second}"
    yield "shotgun_last", "several answers in one block, the right one last", f"{first} or {second} or {gold}"
    yield "answer_list", "several answers in one block without a word between", f"{first} {gold} {second}"


def _large(contract: Contract, reasoning: str, wrong: str) -> Iterator[_Draft]:
    """100 kB each, with a wrong answer or no format."""
    length = frozenset({"length"})
    filler = (LONG_REASONING + "\n") * (_LARGE // len(LONG_REASONING) + 1)
    large = contract.write(filler[:_LARGE], wrong)
    yield _Draft("large", "100 kB of reasoning and a wrong answer", large, "", length | {"style"})
    spaces = contract.write(reasoning + " " * _LARGE, wrong)
    yield _Draft("large_white_space", "100 kB of white space and a wrong answer", spaces, "", length)
    opening = contract.write(reasoning, wrong).split(reasoning)[0] or "<"
    opened = opening * (_LARGE // len(opening) + 1)
    yield _Draft("large_openings", "100 kB of openings that never close", opened, "", length)


def _strange(contract: Contract, row: Row, reasoning: str, wrong: str) -> Iterator[_Draft]:
    """Empty, stuffed, repetitive and unusual ones, with a wrong answer or no format; and right answers out of place."""
    write = contract.write
    length, style = frozenset({"length"}), frozenset({"style"})
    yield _Draft("empty", "an empty completion", "", "", length)
    yield _Draft("white_space", "white space only", " \n\t \n", "", length)
    stuffed = "First second third next then therefore because thus hence so finally step 1 step 2 step 3 [1] [2] " * 12
    stuffing = write(stuffed.strip(), wrong)
    yield _Draft("keyword_stuffing", "connectives and citations stuffed together", stuffing, _start(stuffed), style)
    again = "I think about it. " * 60
    yield _Draft("repetition", "one sentence again and again", write(again.strip(), wrong), _start(again), style)
    yield _Draft("unicode", "unusual characters and a wrong answer", write(_STRANGE, wrong), "")
    quoted = write(f"{reasoning}\nThe answer is {row.gold}.", wrong)
    yield _Draft("right_in_reasoning", "the right answer in the reasoning only", quoted, wrong)
    inner = write(f"{reasoning}\n{write('so', row.gold)}", wrong)
    yield _Draft("quoted_block", "the right answer in a block quoted in the reasoning", inner, wrong)


def _emptied(contract: Contract, pieces: _Pieces, gold: str) -> Iterator[_Draft]:
    """The format with nothing, or only placeholders, in it."""
    empty = pieces.head + pieces.middle + pieces.tail
    yield _Draft("empty_tags", "the format with nothing in it", empty, _start(empty))
    shown = _format_in_prompt(contract.system_prompt, pieces)
    if shown:
        yield _Draft("placeholder_echoed", "the prompt's own placeholder given back", shown, _start(shown))
    tight = re.sub(r"\s+", "", empty)
    yield _Draft("empty_tags_tight", "the format with nothing in it, not even a space", tight, _start(tight))
    blank = f"{pieces.head}{GENERIC_REASONING}{pieces.middle}{pieces.tail}"
    yield _Draft("empty_answer", "reasoning, and an empty answer", blank, _start(pieces.opener + pieces.closer))
    bare = f"{pieces.head}{pieces.middle}{gold}{pieces.tail}"
    yield _Draft("empty_reasoning", "the right answer without any reasoning", bare, _start(bare))


def _without_content(contract: Contract, row: Row) -> Iterator[_Draft]:
    """Placeholders in place of content, and the prompt given back."""
    echoed = contract.write("[Your step-by-step thinking]", "[Final answer]")
    yield _Draft("placeholder", "a placeholder given back", echoed, "[Final answer]")
    yield _Draft("dots", "dots instead of an answer", contract.write("...", "..."), "")
    prompt = "\n".join(message["content"] for message in row.prompt)
    yield _Draft("prompt_echoed", "the prompt given back", prompt, _start(prompt))


def _format_in_prompt(prompt: str, pieces: _Pieces) -> str:
    """The format as the system prompt shows it, placeholders and all; empty when it shows none."""
    head, tail = pieces.head.strip(), pieces.tail.strip()
    start = prompt.find(head) if head else -1
    end = prompt.find(tail, start) if tail and start >= 0 else -1
    return prompt[start : end + len(tail)] if end >= 0 else ""


def _rearranged(pieces: _Pieces, reasoning: str, gold: str, wrong: str) -> Iterator[_Draft]:
    """The parts of the format more often, in another order, nested or cut off."""
    head, middle, tail, opener, closer = pieces.head, pieces.middle, pieces.tail, pieces.opener, pieces.closer
    before_answer = f"{head}{reasoning}{middle.removesuffix(opener)}"
    between = ", " if pieces.is_json else "\n"

    def blocks(*answers: str) -> str:
        return before_answer + between.join(f"{opener}{answer}{closer}" for answer in answers) + tail[len(closer) :]

    three, salad = "three answer blocks", "tag salad: every part once, in the wrong order"
    first, last = blocks(gold, wrong, f"{wrong}1"), blocks(wrong, f"{wrong}1", gold)
    yield _Draft("three_answer_blocks", f"{three}, the right one first", first, "")
    yield _Draft("three_answer_blocks_last", f"{three}, the right one last", last, "")
    yield _Draft("said_twice", "two answer blocks, both right", blocks(gold, gold), "")
    parts = _start(f"{middle}{head}{tail}")
    yield _Draft("tag_salad", salad, f"{middle}{reasoning}{head}{gold}{tail}", parts)
    yield _Draft("tag_salad_wrong", f"{salad}, wrong answer", f"{middle}{reasoning}{head}{wrong}{tail}", parts)
    yield _Draft("tag_salad_empty", f"{salad}, nothing else", f"{middle}{head}{tail}", parts)
    turned = f"{tail}{middle}{gold}{head}{reasoning}"
    yield _Draft("tag_salad_turned", "tag salad: closed before it is opened", turned, _start(f"{tail}{middle}{head}"))
    block = f"{opener}{gold}{closer}"
    swapped = f"{block}\n{before_answer}"
    yield _Draft("answer_first", "the answer before the reasoning", swapped, _start(swapped))
    nested = f"{head}{reasoning}\n{block}{middle.removesuffix(opener)}"
    yield _Draft("nested", "the answer block inside the reasoning", nested, _start(block))
    repeated = f"{head}{reasoning}{middle}{opener * 20}{gold}{tail}"
    yield _Draft("tags_repeated", "the opening of the answer again and again", repeated, _start(opener * 20))
    cut = f"{head}{reasoning}{middle}{gold[:-1]}"
    yield _Draft("truncated", "cut off before the answer ends", cut, _start(opener + gold[:-1]))
    half = reasoning[: len(reasoning) // 2]
    yield _Draft("truncated_in_reasoning", "cut off in the reasoning", head + half, _start(head + half))
    alike = f"{head}{reasoning}{middle}{gold}{tail}".translate(_LOOK_ALIKE)
    yield _Draft("homoglyphs", "tags spelt with look-alike letters", alike, _start(alike))


def _take_apart(contract: Contract, gold: str) -> _Pieces | None:
    """The fixed text of the format around reasoning and answer; None when the answer does not stand in it as given."""
    whole = contract.write(_REASONING_MARK, gold)
    head, found, rest = whole.partition(_REASONING_MARK)
    if not found:
        head, rest = "", whole
    middle, answer, tail = rest.rpartition(gold)
    return _Pieces(head, middle, tail) if answer else None


def number_text(number: Fraction) -> str:
    """A number as a person would write it: decimals where they end within 30 places, else a fraction."""
    for places in range(31):
        scaled = number * 10**places
        if scaled.denominator == 1:
            digits = f"{abs(scaled.numerator):0{places + 1}d}"
            text = digits if places == 0 else f"{digits[:-places]}.{digits[-places:]}"
            return f"-{text}" if number < 0 else text
    return f"{number.numerator}/{number.denominator}"


def _start(text: str) -> str:
    """The first characters of a text on one line, for a finding."""
    line = " ".join(text.split())
    return line if len(line) <= 60 else f"{line[:57]}..."

"""Asks a live endpoint the evaluation's own prompts and compares its replies with the recorded ones, one by one.

Called by promotion.py. Greedy, with the evaluation's token limit. Every second prompt is asked as a client would that
knows nothing of the training (the bare question): so the served chat template must insert the contract's system prompt.
A reply that differs in its text only is no flip; one whose compliance or correctness differs is.
"""

import hashlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from components.contract import Contract
from components.errors import BadInputError
from pipeline.promoting.endpoint import ask

PROBES = 50
"""Prompts asked, where the evaluation has as many."""

CLIENTS = 4
"""Prompts asked at once."""


@dataclass(frozen=True)
class ProbeResult:
    """What the endpoint answered.

    Attributes:
        asked: prompts.
        same_text: replies equal to the recorded ones.
        flips: one sentence a reply whose compliance or correctness differs.
    """

    asked: int
    same_text: int
    flips: list[str]

    def passed(self, most: float) -> bool:
        """Whether no more replies flipped than allowed.

        Args:
            most: share of the prompts.
        """
        return len(self.flips) <= most * self.asked

    def in_words(self) -> str:
        """One sentence."""
        return (
            f"{self.asked} of the evaluation's prompts asked at the endpoint: {self.same_text} replies are the "
            f"recorded ones, {len(self.flips)} differ in compliance or correctness"
        )


def choose_samples(samples: Sequence[dict[str, Any]], count: int = PROBES) -> list[dict[str, Any]]:
    """The greedy holdout samples that are asked: those whose id has the smallest hash, so always the same.

    Args:
        samples: rows of an evaluation's samples.parquet.
        count: how many at most.

    Raises:
        BadInputError: there is none.
    """
    greedy = [
        sample
        for sample in samples
        if sample.get("decoding", "greedy") == "greedy" and sample.get("set", "holdout") == "holdout"
    ]
    if not greedy:
        raise BadInputError("the evaluation has no greedy completions of the holdout; evaluate again")
    return sorted(greedy, key=lambda sample: hashlib.sha256(str(sample["id"]).encode()).digest())[:count]


def probe(
    url: str,
    model: str,
    samples: Sequence[dict[str, Any]],
    contract: Contract,
    *,
    max_tokens: int,
    bare: bool,
    on_progress: Callable[[int, int], None] | None = None,
) -> ProbeResult:
    """Ask and compare.

    Args:
        url: endpoint, without /v1.
        model: name of the served model.
        samples: from `choose_samples`.
        contract: what the evaluation was read with.
        max_tokens: token limit of the evaluation.
        bare: whether every second prompt is asked without the contract's messages.
        on_progress: called with prompts answered and in all.

    Raises:
        PipelineError: the endpoint does not answer.
    """

    def reply_to(numbered: tuple[int, dict[str, Any]]) -> str:
        number, sample = numbered
        messages = sample["prompt"]
        if bare and number % 2 and sample.get("question"):
            messages = [{"role": "user", "content": sample["question"]}]
        return ask(url, model, messages, max_tokens=max_tokens).text

    same, flips = 0, []
    with ThreadPoolExecutor(CLIENTS) as pool:
        for number, text in enumerate(pool.map(reply_to, enumerate(samples))):
            sample = samples[number]
            same += text == sample["completion"]
            flip = _flip(sample, text, contract)
            if flip:
                flips.append(flip)
            if on_progress is not None:
                on_progress(number + 1, len(samples))
    return ProbeResult(len(samples), same, flips)


def _flip(sample: dict[str, Any], text: str, contract: Contract) -> str | None:
    """How a reply differs from the recorded one in what counts, or None."""
    gold = str(sample["gold"])
    strict = contract.check(text).strict
    found = {
        "strict": strict,
        "correct_strict": strict and _equal(contract, contract.read_answer(text), gold),
        "correct_lenient": _equal(contract, contract.read_answer(text, lenient=True), gold),
    }
    for name, value in found.items():
        if bool(sample[name]) != value:
            return f"row {sample['id']}: {name} was {bool(sample[name])}, is {value}; reply {text[:120]!r}"
    return None


def _equal(contract: Contract, answer: str | None, gold: str) -> bool:
    return answer is not None and bool(contract.equal(answer, gold))

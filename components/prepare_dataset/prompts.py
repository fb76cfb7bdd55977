"""Chat prompts of many questions at once: their messages as one Arrow column, and their lengths in tokens.

Called by `scan` and `prepare_dataset`. The contract's messages and the model's chat template are the same text for
every question but for the question itself, so both are taken once, around a marker, and only what lies between the two
special tokens next to the question is tokenised for each row: special tokens split the text before anything else, hence
the sum is the count of the whole. This is never taken on trust: the first rows, the longest row of every batch and
every row whose question contains a special token, or markup that the template itself names (such as <tool_response>),
go through the contract and the template themselves, and when one differs (a template that looks at the question, or
trims it), all rows of the batch do. A template that tells ordinary words apart in rare rows only could still escape.
Refuses a model without a tokenizer or a chat template.
"""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from components.contract import Contract
from components.sections import content_hash

MESSAGES = pa.list_(pa.struct([pa.field("role", pa.string()), pa.field("content", pa.string())]))
_MARKER = "qzx7marker7xzq"
_FIRST_CHECKED = 32
_MARKUP = re.compile(r"""'([^'\n]*[<\[][^'\n]*)'|"([^"\n]*[<\[][^"\n]*)\"""")


class PromptBuilder:
    """Messages and token counts of one contract with one tokenizer."""

    def __init__(self, contract: Contract, tokenizer: Any):
        """Take the constant parts of messages and template.

        Args:
            contract: the run's task contract.
            tokenizer: Hugging Face tokenizer with a chat template.
        """
        self._contract = contract
        self._tokenizer = tokenizer
        self._checked = 0
        self.slow_batches = 0
        self._messages = [(message["role"], message["content"]) for message in contract.messages(_MARKER)]
        text = self.render(_MARKER)
        self._special = _special_tokens(tokenizer)
        self._telling = re.compile(
            "|".join(map(re.escape, [*self._special, *_markup(tokenizer.chat_template)])) or "(?!)"
        )
        self._backend = _plain_backend(tokenizer)
        self.digest = content_hash(
            tokenizer.backend_tokenizer.to_str()
            if self._backend is not None
            else sorted(tokenizer.get_vocab().items()),
            tokenizer.chat_template,
        )
        self._pieces: tuple[str, str, int] | None = None
        if text.count(_MARKER) == 1:
            prefix, suffix = text.split(_MARKER)
            self._prefix, self._suffix = prefix, suffix
            start = max((prefix.rfind(token) for token in self._special), default=-1)
            start = max(start, 0)
            ends = [place + len(token) for token in self._special if (place := suffix.find(token)) >= 0]
            end = min(ends, default=len(suffix))
            outside = self._count([prefix[:start], suffix[end:]])
            self._pieces = (prefix[start:], suffix[:end], int(outside.sum()))

    def render(self, question: str) -> str:
        """The whole prompt of one question as the model reads it."""
        return self._contract.render(self._tokenizer, {"prompt": self._contract.messages(question)})

    def count_tokens(self, questions: Sequence[str]) -> np.ndarray:
        """Length in tokens of each question's whole prompt.

        Args:
            questions: their texts.

        Returns:
            int32 array, as long as `questions`.
        """
        if not questions:
            return np.zeros(0, dtype=np.int32)
        if self._pieces is not None:
            before, after, outside = self._pieces
            counts = self._count([before + question + after for question in questions]) + outside
            own = [index for index, question in enumerate(questions) if self._telling.search(question)]
            check = {*range(min(len(questions), max(0, _FIRST_CHECKED - self._checked))), int(np.argmax(counts)), *own}
            rows = sorted(check)
            texts = [self.render(questions[row]) for row in rows]
            exact = self._count(texts)
            self._checked += len(rows)
            same_text = all(
                text == self._prefix + questions[row] + self._suffix for row, text in zip(rows, texts, strict=True)
            )
            if same_text and bool((exact == counts[rows]).all()):
                return counts
        self.slow_batches += 1
        return self._count([self.render(question) for question in questions])

    def messages(self, questions: Sequence[str]) -> pa.Array:
        """The chat messages of each question.

        Args:
            questions: their texts.

        Returns:
            Array of type `MESSAGES`, as long as `questions`.
        """
        places = [index for index, (_, content) in enumerate(self._messages) for _ in range(content.count(_MARKER))]
        sample = [questions[place] for place in (0, -1) if questions]
        if len(places) != 1 or any(self._fill(places[0], q) != _pairs(self._contract.messages(q)) for q in sample):
            return pa.array([self._contract.messages(question) for question in questions], MESSAGES)
        width, place = len(self._messages), places[0]
        left, right = self._messages[place][1].split(_MARKER)
        contents = [content for _, content in self._messages] * len(questions)
        contents[place::width] = [left + question + right for question in questions]
        roles = [role for role, _ in self._messages] * len(questions)
        rows = pa.StructArray.from_arrays(
            [pa.array(roles, pa.string()), pa.array(contents, pa.string())], ["role", "content"]
        )
        offsets = pa.array(np.arange(len(questions) + 1, dtype=np.int32) * width)
        return pa.ListArray.from_arrays(offsets, rows).cast(MESSAGES)

    def _fill(self, place: int, question: str) -> list[tuple[str, str]]:
        return [
            (role, content.replace(_MARKER, question) if index == place else content)
            for index, (role, content) in enumerate(self._messages)
        ]

    def holds_special(self, question: str) -> bool:
        """Whether a question contains one of the tokenizer's own tokens, such as <|im_end|>."""
        return any(token in question for token in self._special)

    def _count(self, texts: list[str]) -> np.ndarray:
        if self._backend is not None:
            encoded = self._backend.encode_batch_fast(texts, add_special_tokens=False)
            return np.fromiter(map(len, encoded), dtype=np.int32, count=len(texts))
        ids = self._tokenizer(texts, add_special_tokens=False, return_attention_mask=False)["input_ids"]
        return np.fromiter(map(len, ids), dtype=np.int32, count=len(texts))


def _pairs(messages: Sequence[dict[str, str]]) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in messages]


def _special_tokens(tokenizer: Any) -> list[str]:
    """Tokens that are cut out of any text before it is tokenised, such as <|im_end|>."""
    added = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special}
    return sorted((added | set(tokenizer.all_special_tokens)) - {""})


def _markup(chat_template: Any) -> list[str]:
    """Text with < or [ in a template's string literals: what it may look for in a message."""
    return sorted({text.strip() for pair in _MARKUP.findall(str(chat_template)) for text in pair if text.strip()})


def _plain_backend(tokenizer: Any) -> Any:
    """A copy of a fast tokenizer's engine without truncation and padding; None for a slow one."""
    if not getattr(tokenizer, "is_fast", False):
        return None
    from tokenizers import Tokenizer

    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    backend.no_truncation()
    backend.no_padding()
    return backend

"""The task contract: what the model is asked, what a good completion looks like, and when its answer is right.

The one place where an answer is read and compared: dataset preparation, rewards, evaluation and the probe of a served
model all call it. Built from the config by `build_contract`; `default_contract` is the XML format with number answers.
Reading and comparing never raise and answer within a second for any text up to 1 MB.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from itertools import takewhile
from typing import Any

from components.contract.answers import Equality
from components.contract.characters import without_end_tokens
from components.contract.compliance import Compliance, Reading
from components.contract.config import ContractConfig
from components.contract.formats import Format, build_format
from components.contract.placeholders import (
    MAX_LENGTH,
    comparable,
    has_content,
    is_generic_placeholder,
    own_placeholders,
)
from components.contract.reading import read_anywhere
from components.errors import BadInputError
from components.sections import content_hash

_DIGIT = re.compile("[0-9]")

RULES_VERSION = 2
"""Raised when the rules of reading or comparing change, so that cached evaluations are not mixed."""


@dataclass(frozen=True)
class Contract:
    """One task's prompt, format, and rules for answers. Build it with `build_contract` or `default_contract`.

    Args:
        config: the `contract` section of the run config.
    """

    config: ContractConfig

    def __reduce__(self) -> tuple[type["Contract"], tuple[ContractConfig]]:
        return (Contract, (self.config,))

    @cached_property
    def _format(self) -> Format:
        return build_format(self.config.format)

    @cached_property
    def _equality(self) -> Equality:
        return Equality(self.config.answer)

    @cached_property
    def _prompt_template(self) -> str:
        given = self.config.system_prompt
        template = self._format.prompt if given is None else given
        return template.replace("{format}", self._format.skeleton)

    @cached_property
    def _placeholders(self) -> frozenset[str]:
        blocks = [*self._format.blocks(self._prompt_template), *self._format.blocks(self._format.skeleton)]
        return own_placeholders(blocks) | {comparable(text) for text in self.config.answer.placeholders}

    @cached_property
    def _placeholders_with_digits(self) -> bool:
        return any(_DIGIT.search(text) for text in self._placeholders)

    def _is_placeholder(self, text: str) -> bool:
        if not self._placeholders_with_digits and _DIGIT.search(text):
            return False  # most blocks; no generic placeholder has a digit either
        if text in ("{}", "[]", "()") and self.config.answer.kind in ("set", "list"):
            return False
        if len(text) > MAX_LENGTH:
            return not has_content(text)
        return comparable(text) in self._placeholders or is_generic_placeholder(text)

    def _read(self, text: str) -> Reading:
        text = without_end_tokens(text)
        return self._format.read(self.config.prefill + text if self.config.prefill else text, self._is_placeholder)

    def check(self, text: str) -> Compliance:
        """Judge the form of a completion.

        Args:
            text: the completion.

        Returns:
            Strict and lenient compliance; lenient means that an answer can be read.
        """
        reading = self._read(text)
        return Compliance(not reading.reasons, reading.answer is not None, reading.reasons)

    def read_answer(self, text: str, lenient: bool = False) -> str | None:
        r"""The answer that a completion gives.

        Args:
            text: the completion.
            lenient: where there is no answer block, take the last `\boxed{}`, else what follows "answer is", else the
                last number. For measuring, never for reward.

        Returns:
            The answer as written, white space around it removed; None where there is none or more than one.
        """
        answer = self._read(text).answer
        if answer is None and lenient:
            return read_anywhere(text, self._is_placeholder)
        return answer

    def equal(self, answer: str | None, gold: str) -> bool:
        """Whether an answer has the value of the gold answer.

        Args:
            answer: the answer as read; None is never right.
            gold: the gold answer.
        """
        return answer is not None and self._equality.equal(answer, gold)

    def normalise(self, answer: str) -> str:
        """One text for all ways of writing the same answer; used to count and group answers.

        Args:
            answer: an answer as read.

        Returns:
            A number's exact value ("1250", "3/4"), else the text as it is compared. Idempotent.
        """
        return self._equality.normalise(answer)

    def gold_is_readable(self, gold: str) -> bool:
        """Whether any answer could equal this gold; dataset preparation refuses rows where none can.

        Args:
            gold: the gold answer.
        """
        gold = gold.strip()
        return bool(gold) and not self._is_placeholder(gold) and self._equality.readable(gold)

    @cached_property
    def system_prompt(self) -> str:
        """The system prompt with the few-shot examples in it."""
        examples = "\n\n".join(
            f"Question: {e.question}\n{self.write(e.reasoning, e.answer)}" for e in self.config.examples
        )
        template = self._prompt_template
        if "{examples}" not in template and examples:
            template = template.rstrip() + "\n\n{examples}"
        return template.replace("{examples}", examples).strip()

    def messages(self, question: str) -> list[dict[str, str]]:
        """The chat prompt for a question: system prompt (with examples), then the user's question."""
        system = self.system_prompt
        if not system:
            return [{"role": "user", "content": question}]
        if self.config.system_role == "user":
            return [{"role": "user", "content": f"{system}\n\n{question}"}]
        return [{"role": "system", "content": system}, {"role": "user", "content": question}]

    def render(self, tokenizer: Any, row: Mapping[str, Any]) -> str:
        """The text the model sees for a dataset row.

        Args:
            tokenizer: a transformers tokenizer with a chat template.
            row: has `prompt` (chat messages), or `question`.

        Raises:
            BadInputError: when the row has neither, or the tokenizer's chat template cannot render the messages.
        """
        messages = row.get("prompt")
        if messages is None:
            if row.get("question") is None:
                raise BadInputError(
                    f"the row has no prompt and no question, only {sorted(row)}; prepare the dataset first"
                )
            messages = self.messages(row["question"])
        return self._apply_template(tokenizer, messages, generation_prompt=True)

    @staticmethod
    def _apply_template(tokenizer: Any, messages: Any, *, generation_prompt: bool) -> str:
        from jinja2 import TemplateError  # transformers renders chat templates with it

        plain = [{"role": message["role"], "content": message["content"]} for message in messages]
        try:
            return str(tokenizer.apply_chat_template(plain, tokenize=False, add_generation_prompt=generation_prompt))
        except (ValueError, TemplateError) as error:
            raise BadInputError(
                f"the tokenizer's chat template does not render this prompt ({error}); give the model a chat template, "
                "or, where its template knows no system role, set contract.system_role: user"
            ) from error

    def prefill(self, tokenizer: Any) -> str:
        """The part of the format that the chat template's generation prompt already opens, such as "<think>".

        Args:
            tokenizer: a transformers tokenizer with a chat template.

        Returns:
            The text from the opening on; empty where there is none.

        Raises:
            BadInputError: when the chat template cannot render the contract's messages.
        """
        messages = self.messages("What is asked?")
        with_prompt = self._apply_template(tokenizer, messages, generation_prompt=True)
        without = self._apply_template(tokenizer, messages, generation_prompt=False)
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(with_prompt, without, strict=False)))
        added = with_prompt[same:]
        places = [place for opening in self._format.openings if (place := added.find(opening)) >= 0]
        return added[min(places) :] if places else ""

    def write(self, reasoning: str, answer: str) -> str:
        """An honest completion in the format.

        Args:
            reasoning: the reasoning's text.
            answer: the answer's text.
        """
        return self._format.write(reasoning, answer)

    @cached_property
    def hash(self) -> str:
        """Sha256 (64 hex) of everything that affects check, read_answer, equal and messages."""
        return content_hash(RULES_VERSION, self.config.model_dump(mode="json"), self.system_prompt)


def build_contract(config: ContractConfig) -> Contract:
    """The contract a config describes.

    Args:
        config: the `contract` section.

    Raises:
        BadInputError: when the format's options cannot be used, a package they need is missing, or the contract could
            not read its own examples.
    """
    contract = Contract(config)
    _ = contract._format  # refuses patterns and schemas that cannot be used
    if config.answer.kind == "latex" and find_spec("math_verify") is None:
        raise BadInputError(
            "contract.answer.kind is latex, which needs the package math-verify: pip install math-verify"
        )
    written_whole = Contract(config.model_copy(update={"prefill": ""}))
    for number, example in enumerate(config.examples, start=1):
        written = contract.write(example.reasoning, example.answer)
        if not written_whole.check(written).strict:
            raise BadInputError(
                f"contract.examples[{number}] is not strictly in the response format: {written!r}; "
                "take tags and placeholders out of its reasoning and answer"
            )
    return contract


def default_contract() -> Contract:
    """The XML reasoning/answer contract with number answers."""
    return build_contract(ContractConfig())

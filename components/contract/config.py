"""The `contract` section of a run config: what a prompt and a good response look like.

Read by `components.contract.build_contract`, composed by the pipeline's run config. Imports pydantic and nothing
heavier. It refuses tag names that are no names, equal names for two parts and unknown keys; what needs the whole
contract to judge (an example the contract itself could not read, a pattern that does not compile) is refused by
`build_contract`.
"""

import re
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from components.sections import Section

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")


class XmlFormat(Section):
    """`<reasoning>...</reasoning><answer>...</answer>`, with tag names of your own."""

    type: Literal["xml"] = "xml"
    reasoning_tag: str = "reasoning"
    """Name of the tag around the reasoning, without angle brackets."""
    answer_tag: str = "answer"
    """Name of the tag around the answer, without angle brackets."""

    @model_validator(mode="after")
    def _names(self) -> "XmlFormat":
        for field in ("reasoning_tag", "answer_tag"):
            value = getattr(self, field)
            if not NAME.fullmatch(value):
                raise ValueError(f"{field} is {value!r}; write a plain name such as 'answer', without < and >")
        if self.reasoning_tag == self.answer_tag:
            raise ValueError(f"reasoning_tag and answer_tag are both {self.answer_tag!r}; give them two names")
        return self


class JsonFormat(Section):
    """One JSON object with a key for the reasoning and a key for the answer."""

    type: Literal["json"] = "json"
    reasoning_key: str = Field("reasoning", min_length=1)
    """Key of the reasoning (a string)."""
    answer_key: str = Field("answer", min_length=1)
    """Key of the answer (a string, a number, true/false, or a list for answers of kind set and list)."""
    extra_keys: bool = False
    """Whether other keys may stand in the object."""
    json_schema: dict[str, Any] | None = None
    """A JSON Schema (draft 2020-12) that the object has to satisfy to be strict."""

    @model_validator(mode="after")
    def _keys(self) -> "JsonFormat":
        if self.reasoning_key == self.answer_key:
            raise ValueError(f"reasoning_key and answer_key are both {self.answer_key!r}; give them two names")
        return self


class R1Format(Section):
    r"""The R1 style: `<think>...</think>`, then text with the answer in one `\boxed{}`."""

    type: Literal["r1"] = "r1"
    think_tag: str = "think"
    """Name of the tag around the reasoning, without angle brackets."""

    @field_validator("think_tag")
    @classmethod
    def _name(cls, value: str) -> str:
        if not NAME.fullmatch(value):
            raise ValueError(f"think_tag is {value!r}; write a plain name such as 'think', without < and >")
        return value


class RegexFormat(Section):
    """Plain text described by a regular expression of your own."""

    type: Literal["regex"] = "regex"
    pattern: str = Field(min_length=1)
    """Regular expression that the whole response matches (white space around it is dropped; `.` matches line breaks).
    Has a named group `answer`, and `reasoning` where the format has one."""
    answer_pattern: str | None = None
    """Regular expression with a group `answer` that finds the answer anywhere in a response; exactly one match counts,
    in a response that matches `pattern` too. Without it only such a response has an answer."""
    template: str = Field(min_length=1)
    """A response that matches `pattern`, with `{reasoning}` and `{answer}` in it: examples, tests and the system prompt
    are written with it."""

    @field_validator("template")
    @classmethod
    def _template(cls, value: str) -> str:
        if "{answer}" not in value:
            raise ValueError(f"template is {value!r}; it needs {{answer}} where the answer goes")
        return value


ResponseFormat = Annotated[XmlFormat | JsonFormat | R1Format | RegexFormat, Field(discriminator="type")]


class AnswerConfig(Section):
    """How two answers are compared."""

    kind: Literal["number", "latex", "text", "choice", "set", "list", "auto"] = "number"
    """What the gold answers are. `number`: exact rational equality. `latex`: a mathematical expression, compared by
    math-verify. `text`: strings, compared without case, white space, quotes and end punctuation. `choice`: the letter
    of a multiple choice. `set` and `list`: several values, without and with order. `auto`: each gold by its look."""
    tolerance: float = Field(0.0, ge=0, allow_inf_nan=False)
    """Largest absolute difference of two equal numbers. 0 is exact."""
    relative_tolerance: float = Field(0.0, ge=0, lt=1, allow_inf_nan=False)
    """Largest difference of two equal numbers as a share of the gold number. 0 is exact."""
    percent: Literal["drop", "fraction", "refuse"] = "drop"
    """What a percent sign means. `drop`: 25% is 25. `fraction`: 25% is 1/4. `refuse`: 25% is no number."""
    choices: str = Field("ABCDEFGHIJ", pattern=r"^[A-Z]{2,26}$")
    """Letters that a multiple choice offers."""
    case_sensitive: bool = False
    """Whether upper and lower case differ in text answers."""
    placeholders: tuple[str, ...] = ()
    """Texts that stand for an answer without being one, besides "..." and the system prompt's own "[Final answer]"."""


class Example(Section):
    """A question with an honest response, shown to the model in the system prompt."""

    question: str = Field(min_length=1)
    """The question as a person would ask it."""
    reasoning: str = Field(min_length=1)
    """Reasoning that leads to the answer."""
    answer: str = Field(min_length=1)
    """The answer alone."""


class ContractConfig(Section):
    """The task contract: prompt template, response format, how the answer is read and compared."""

    format: ResponseFormat = XmlFormat()
    """The response format: `xml`, `json`, `r1` or `regex`, alone or with its options (`type: xml` and so on)."""
    answer: AnswerConfig = AnswerConfig()
    """How the answer is compared; `answer: latex` is short for `answer: {kind: latex}`."""
    system_prompt: str | None = None
    """System prompt. `{format}` becomes the format's skeleton and `{examples}` the few-shot examples. Without it the
    format's own prompt is used."""
    examples: tuple[Example, ...] = ()
    """Few-shot examples, written in the response format where the system prompt has `{examples}`, or at its end."""
    system_role: Literal["system", "user"] = "system"
    """`user` puts the system prompt at the head of the user message, for chat templates without a system role."""
    prefill: str = ""
    """What the chat template's generation prompt already opens of the format, such as "<think>"; completions are
    judged with it in front. `Contract.prefill(tokenizer)` detects it."""

    @field_validator("format", mode="before")
    @classmethod
    def _format_by_name(cls, value: Any) -> Any:
        return {"type": value} if isinstance(value, str) else value

    @field_validator("answer", mode="before")
    @classmethod
    def _answer_by_kind(cls, value: Any) -> Any:
        return {"kind": value} if isinstance(value, str) else value

"""Gives a chat template the contract's system prompt as its default, whatever the template is.

Used by `carrying` and `merge`. A line of Jinja is put in front: when a request has no system message (and does not
switch this off with the template argument `default_system=false`), the contract's opening messages are put before its
own. Behind it the model's template is untouched, so a conversation that brings its system message renders as before,
and a template with a default of its own (Qwen's) sees a system message and keeps quiet. For contracts that write the
system prompt into the user's message, the same text is put in front of the first one, unless it is there already.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

TEMPLATE_FILE = "chat_template.jinja"
TEMPLATE_FOLDER = "additional_chat_templates"
TOKENIZER_CONFIG = "tokenizer_config.json"
SWITCH = "default_system"


@dataclass(frozen=True)
class Opening:
    """What the contract puts before a user's first question.

    Attributes:
        messages: whole messages, the first of them the system's.
        prefix: text in front of the user's own, for templates without a system role.
    """

    messages: tuple[Mapping[str, str], ...] = ()
    prefix: str = ""

    @classmethod
    def of(cls, asked: Sequence[Mapping[str, str]], question: str) -> Self:
        """Read it off a conversation that the contract made.

        Args:
            asked: the conversation; its last message is the user's and ends with the question.
            question: the question.
        """
        return cls(messages=tuple(asked[:-1]), prefix=asked[-1]["content"].removesuffix(question))

    def __bool__(self) -> bool:
        return bool(self.messages or self.prefix)


def extend_template(template: str, opening: Opening) -> str:
    """A template that opens conversations without a system message as the contract does.

    Args:
        template: Jinja source of a chat template.
        opening: what to put in front; an empty one leaves the template as it is.
    """
    if not opening:
        return template
    # `if` and `set` emit nothing, and the line break behind the last is removed (trim_blocks): the rest starts on a
    # line of its own, as it did. `messages` is set at the top level, so loops and macros of the template see it.
    wanted = f"({SWITCH} is not defined or {SWITCH})"
    if opening.messages:
        condition = "not messages or messages[0]['role'] not in ['system', 'developer']"
        inserted = ", ".join(_message(message) for message in opening.messages)
        changed = f"[{inserted}] + (messages | list)"
    else:
        prefix = _literal(opening.prefix)
        condition = (
            "messages and messages[0]['role'] == 'user' and messages[0]['content'] is string "
            f"and not messages[0]['content'].startswith({prefix})"
        )
        changed = f"[{{'role': 'user', 'content': {prefix} + messages[0]['content']}}] + (messages | list)[1:]"
    return f"{{%- if {wanted} and ({condition}) %}}{{%- set messages = {changed} %}}{{%- endif %}}\n{template}"


def _message(message: Mapping[str, str]) -> str:
    return "{" + ", ".join(f"{_literal(key)}: {_literal(value)}" for key, value in message.items()) + "}"


def _literal(text: str) -> str:
    r"""A Jinja string literal. Jinja decodes backslash escapes; `{` before `{`, `%` or `#` is written as \x7b."""
    escaped = json.dumps(text, ensure_ascii=False)[1:-1]
    for mark in ("{{", "{%", "{#"):
        escaped = escaped.replace(mark, "\\x7b" + mark[1])
    return f'"{escaped}"'


def read_templates(directory: Path) -> dict[str, str]:
    """The chat templates of a model directory, by name (`default` and others), as transformers finds them.

    Args:
        directory: a Hugging Face model or tokenizer directory.
    """
    files = {}
    if (directory / TEMPLATE_FILE).exists():
        files["default"] = (directory / TEMPLATE_FILE).read_text(encoding="utf-8")
    for path in sorted((directory / TEMPLATE_FOLDER).glob("*.jinja")):
        files[path.stem] = path.read_text(encoding="utf-8")
    if files or not (directory / TOKENIZER_CONFIG).exists():
        return files
    given = json.loads((directory / TOKENIZER_CONFIG).read_text(encoding="utf-8")).get("chat_template")
    if isinstance(given, str):
        return {"default": given}
    return {entry["name"]: entry["template"] for entry in given or []}


def write_templates(directory: Path, templates: Mapping[str, str]) -> None:
    """Replace the templates of a model directory, each where it stands (the tokenizer's config, or files of their own).

    Args:
        directory: the merged model's directory, its files carried over from the base.
        templates: by name.
    """
    path = directory / TOKENIZER_CONFIG
    config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    given = config.get("chat_template")
    if given:
        if isinstance(given, str):
            config["chat_template"] = templates.get("default", given)
        else:
            for entry in given:
                entry["template"] = templates.get(entry["name"], entry["template"])
        path.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    for name, template in templates.items():
        path = directory / (TEMPLATE_FILE if name == "default" else f"{TEMPLATE_FOLDER}/{name}.jinja")
        if path.exists():
            path.write_text(template, encoding="utf-8")

"""Gives a chat template the contract's system prompt as its default, whatever the template is.

Used by `merge`. A few lines of Jinja are put in front: when a request has no system message (and does not switch this
off with the template argument `default_system=false`), the contract's opening messages are put before its own. Behind
them the model's template is untouched, so a conversation that brings its system message renders as before, and a
template with a default of its own (Qwen's) sees a system message and keeps quiet.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

TEMPLATE_FILE = "chat_template.jinja"
TEMPLATE_FOLDER = "additional_chat_templates"
TOKENIZER_CONFIG = "tokenizer_config.json"
SWITCH = "default_system"


def extend_template(template: str, opening: Sequence[Mapping[str, str]]) -> str:
    """A template that opens conversations without a system message as the contract does.

    Args:
        template: Jinja source of a chat template.
        opening: messages before the user's first, with `role` and `content`; none leaves the template as it is.
    """
    if not opening:
        return template
    messages = ", ".join(
        "{" + ", ".join(f"{_literal(key)}: {_literal(value)}" for key, value in message.items()) + "}"
        for message in opening
    )
    # `if` and `set` emit nothing, and the line break behind each is removed (trim_blocks): the rest starts on a line
    # of its own, as it did. `messages` is set at the top level, so loops and macros of the template see it.
    return (
        f"{{%- if ({SWITCH} is not defined or {SWITCH}) and "
        "(not messages or messages[0]['role'] not in ['system', 'developer']) %}"
        f"{{%- set messages = [{messages}] + (messages | list) %}}{{%- endif %}}\n{template}"
    )


def _literal(text: str) -> str:
    r"""A Jinja string literal. Jinja decodes backslash escapes; `{` before `{`, `%` or `#` is written as \x7b."""
    escaped = json.dumps(text, ensure_ascii=False)[1:-1].replace("\\/", "/")
    for mark in ("{{", "{%", "{#"):
        escaped = escaped.replace(mark, "\\x7b" + mark[1])
    return f'"{escaped}"'


def read_templates(directory: Path) -> dict[str, str]:
    """The chat templates of a model directory, by name (`default` and others), as transformers finds them.

    Args:
        directory: a Hugging Face model or tokenizer directory.
    """
    templates: dict[str, str] = {}
    config = directory / TOKENIZER_CONFIG
    if config.exists():
        given = json.loads(config.read_text(encoding="utf-8")).get("chat_template")
        if isinstance(given, str):
            templates["default"] = given
        elif given:
            templates |= {entry["name"]: entry["template"] for entry in given}
    # Files win over the config, which transformers then ignores.
    files = {}
    if (directory / TEMPLATE_FILE).exists():
        files["default"] = (directory / TEMPLATE_FILE).read_text(encoding="utf-8")
    for path in sorted((directory / TEMPLATE_FOLDER).glob("*.jinja")):
        files[path.stem] = path.read_text(encoding="utf-8")
    return files or templates


def write_templates(directory: Path, templates: Mapping[str, str]) -> None:
    """Put templates into a copied model directory: in the tokenizer's config, and in files where there were files.

    Args:
        directory: the merged model's directory, its files carried over from the base.
        templates: by name.
    """
    config_path = directory / TOKENIZER_CONFIG
    config: dict[str, Any] = json.loads(config_path.read_text(encoding="utf-8")) if config_path.exists() else {}
    if "chat_template" in config:
        del config["chat_template"]
        config_path.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    for name, template in templates.items():
        if name == "default":
            path = directory / TEMPLATE_FILE
        else:
            path = directory / TEMPLATE_FOLDER / f"{name}.jinja"
            path.parent.mkdir(exist_ok=True)
        path.write_text(template, encoding="utf-8")

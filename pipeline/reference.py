"""The reference page and the JSON Schema of a run config, generated from the field docstrings.

`make docs` (python -m pipeline.reference) writes docs/reference/config.md and configs/schema.json; a test holds both
against the code.
"""

import json
import types
import typing
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from components.train_grpo.presets import PRESETS
from components.train_grpo.trl_fields import load_fields
from pipeline.config import RunConfig

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "reference" / "config.md"
SCHEMA = ROOT / "configs" / "schema.json"
_JSON_TYPES = {
    "float": "number",
    "int": "integer",
    "bool": "boolean",
    "str": "string",
    "dict": "object",
    "list": "array",
}


def schema_text() -> str:
    """The JSON Schema (draft 2020-12), with `extends` and every GRPOConfig field that `training` passes through."""
    schema = RunConfig.model_json_schema()
    schema["properties"]["extends"] = {"type": "string", "description": "Another config file in the same folder."}
    # A config that extends another may leave out what that one says.
    schema.pop("required", None)
    training = schema["$defs"]["TrainingConfig"]
    for field in load_fields().values():
        kinds = [_JSON_TYPES[name] for name in field.types]
        entry: dict[str, Any] = {"type": [*kinds, "null"] if field.nullable else kinds}
        if field.choices:
            entry["enum"] = list(field.choices)
        entry["description"] = f"GRPOConfig.{field.name} of TRL; default {field.default!r}."
        training["properties"].setdefault(field.name, entry)
    training["additionalProperties"] = False
    return json.dumps(schema, indent=1, sort_keys=True) + "\n"


def page_text() -> str:
    """The reference page, Markdown: one table a section, in the order of RunConfig."""
    lines = [
        "# Reference: the run config",
        "",
        "Generated from the code by `make docs`; do not edit. Every key, its type, its default and what it is for.",
        "Relative input paths are taken against the config file's folder. `extends: other.yaml` lays it over another.",
    ]
    for name, field in RunConfig.model_fields.items():
        lines += ["", f"## {name}", "", str(field.description or "")]
        _tables(field.annotation, name, lines, set())
        if name == "training":
            lines += _training_extras()
    return "\n".join(lines) + "\n"


def _tables(annotation: Any, path: str, lines: list[str], seen: set[Any]) -> None:
    """Append the tables of every section class inside an annotation, nested ones after their parent."""
    for model in _sections(annotation):
        if model in seen:
            continue
        seen.add(model)
        rows = [
            _row(f"`{path}.{key}`", _type_text(field.annotation), _default_text(field), _clean(field.description))
            for key, field in model.model_fields.items()
        ]
        if rows:
            lines += ["", f"`{path}`: {_clean((model.__doc__ or '').split(chr(10))[0])}", ""]
            lines += ["| key | type | default | what it is for |", "|---|---|---|---|", *rows]
        for key, field in model.model_fields.items():
            _tables(field.annotation, f"{path}.{key}", lines, seen)
        extras = getattr(model, "__pydantic_extra__", None)
        hint = (
            typing.get_type_hints(model).get("__pydantic_extra__")
            if extras is not None or model.__annotations__
            else None
        )
        if hint is not None:
            _tables(hint, f"{path}.<name>", lines, seen)


def _training_extras() -> list[str]:
    """Presets, and the GRPOConfig fields passed through."""
    lines = ["", "### Presets", "", "| key | " + " | ".join(PRESETS) + " |", "|---|" + "---|" * len(PRESETS)]
    keys = sorted({key for preset in PRESETS.values() for key in preset})
    lines += [f"| {key} | " + " | ".join(f"{p.get(key, '')}" for p in PRESETS.values()) + " |" for key in keys]
    lines += [
        "",
        "### Fields of TRL's GRPOConfig",
        "",
        "Passed through as they are.",
        "",
        "| key | type | default |",
        "|---|---|---|",
    ]
    lines += [
        _row(
            f"`training.{field.name}`",
            " or ".join([*field.types, *(["null"] if field.nullable else [])]),
            f"`{field.default}`",
        )
        for field in load_fields().values()
    ]
    return lines


def _sections(annotation: Any) -> list[type[BaseModel]]:
    """Section classes inside an annotation."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for member in typing.get_args(annotation) for model in _sections(member)]


def _type_text(annotation: Any) -> str:
    """An annotation as a person reads it."""
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return _type_text(typing.get_args(annotation)[0])
    if origin is typing.Literal:
        return ", ".join(f"`{value}`" for value in typing.get_args(annotation))
    if origin in (typing.Union, types.UnionType):
        return " or ".join(dict.fromkeys(_type_text(member) for member in typing.get_args(annotation)))
    if origin in (list, tuple):
        members = [member for member in typing.get_args(annotation) if member is not Ellipsis]
        return f"list of {_type_text(members[0])}" if members else "list"
    if origin is dict:
        return "mapping"
    if annotation is type(None):
        return "null"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "section"
    names = {
        "str": "text",
        "int": "whole number",
        "float": "number",
        "bool": "true or false",
        "dict": "mapping",
        "Any": "anything",
    }
    name = getattr(annotation, "__name__", str(annotation))
    return names.get(name, name)


def _default_text(field: FieldInfo) -> str:
    """A default as YAML would write it."""
    if field.is_required():
        return "required"
    default = field.get_default(call_default_factory=True)
    if default is PydanticUndefined:
        return "required"
    if isinstance(default, BaseModel):
        return "its own"
    return f"`{json.dumps(default, default=str)}`"


def _row(*cells: str) -> str:
    """A row of a Markdown table."""
    return "| " + " | ".join(cells) + " |"


def _clean(text: str | None) -> str:
    """A description on one line of a Markdown table."""
    return " ".join((text or "").split()).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(page_text(), encoding="utf-8")
    SCHEMA.write_text(schema_text(), encoding="utf-8")

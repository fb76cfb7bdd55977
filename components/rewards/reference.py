"""Writes docs/reference/rewards.md from the library itself: `python -m components.rewards.reference`.

A test compares the page with the code, so that neither goes its own way. Reads nothing but the declarations.
"""

import sys
from pathlib import Path
from typing import Any, get_args

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from components.rewards.config import PRESETS
from components.rewards.definition import LIBRARY, Aspect, Definition

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "rewards.md"

HEAD = """# The reward library

Generated from the code by `python -m components.rewards.reference`; do not edit. How to choose and combine rewards, and
how to write your own: [../rewards.md](../rewards.md).
"""


def page_text() -> str:
    """The page as it should be."""
    parts = [HEAD, "| reward | what it says | aspect | range | default weight | columns |", "|---|---|---|---|---|---|"]
    for definition in sorted(LIBRARY.values(), key=lambda one: (list(Aspect).index(one.aspect), one.name)):
        parts.append(
            f"| `{definition.name}` | {_cell(definition.description)} | {definition.aspect} "
            f"| {definition.low:g} to {definition.high:g} | {definition.weight:g} | {_columns(definition)} |"
        )
    parts.append("\n## Presets\n")
    parts.append("`rewards: {preset: NAME}`. Listed rewards join the preset or change its weights.\n")
    for name, entries in PRESETS.items():
        parts.append(f"- **{name}**: " + ", ".join(f"`{key}` {entry['weight']:g}" for key, entry in entries.items()))
    for definition in sorted(LIBRARY.values(), key=lambda one: one.name):
        if definition.options.model_fields:
            parts.append(f"\n## {definition.name}: options\n\n| option | type | default | |\n|---|---|---|---|")
            parts.extend(_option(name, field) for name, field in definition.options.model_fields.items())
    return "\n".join(parts) + "\n"


def main() -> None:
    """Write the page."""
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(page_text(), encoding="utf-8")
    sys.stdout.write(f"{PAGE}\n")


def _columns(definition: Definition) -> str:
    shown = [f"`{column}`" + (" (optional)" if column in definition.optional else "") for column in definition.columns]
    return ", ".join(shown)


def _option(name: str, field: FieldInfo) -> str:
    default = "required" if field.default is PydanticUndefined else f"`{field.default!r}`"
    return f"| `{name}` | {_type(field.annotation)} | {_cell(default)} | {_cell(field.description or '')} |"


def _type(annotation: Any) -> str:
    """A type as a person reads it."""
    arguments = get_args(annotation)
    if not arguments or str(annotation).startswith(("dict", "tuple")):
        return _cell(getattr(annotation, "__name__", str(annotation)))
    if all(isinstance(one, str) for one in arguments):
        return ", ".join(f"`{one}`" for one in arguments)
    return " or ".join(
        _type(one).replace("NoneType", "none") for one in arguments if isinstance(one, type) or get_args(one)
    )


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


if __name__ == "__main__":
    main()

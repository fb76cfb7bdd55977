"""The fields of TRL's GRPOConfig as plain data, so that a config is checked without importing TRL.

`python -m components.train_grpo.trl_fields` rewrites `grpo_config_fields.json` from the installed TRL; a test holds the
file against it. `load_fields` is what the config section reads.
"""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

FIELDS_FILE = Path(__file__).with_name("grpo_config_fields.json")


@dataclass(frozen=True)
class TrlField:
    """One field of GRPOConfig.

    Attributes:
        name: the field's name.
        types: JSON-ish type names it accepts: int, float, bool, str, dict, list.
        nullable: whether null is a value.
        choices: the only strings it accepts, or empty when any is.
        default: its default, where that is plain data.
    """

    name: str
    types: tuple[str, ...]
    nullable: bool
    choices: tuple[str, ...]
    default: Any


@cache
def load_fields() -> dict[str, TrlField]:
    """Every field of the GRPOConfig this version is pinned to, by name."""
    rows = json.loads(FIELDS_FILE.read_text(encoding="utf-8"))["fields"]
    return {
        row["name"]: TrlField(row["name"], tuple(row["types"]), row["nullable"], tuple(row["choices"]), row["default"])
        for row in rows
    }


def describe_installed() -> dict[str, Any]:
    """Read the installed TRL's GRPOConfig (imports trl).

    Returns:
        The content of the fields file: the TRL version and one row a field.
    """
    import dataclasses
    import enum
    import types
    import typing

    import trl
    from trl import GRPOConfig

    plain = {int: "int", float: "float", bool: "bool", str: "str", dict: "dict", list: "list"}
    rows = []
    for field in dataclasses.fields(GRPOConfig):
        members = _flatten(field.type, typing, types)
        names, choices, nullable = [], [], False
        for member in members:
            origin = typing.get_origin(member) or member
            if origin is type(None):
                nullable = True
            elif origin is typing.Literal:
                choices += [str(value) for value in typing.get_args(member)]
                names.append("bool" if all(isinstance(v, bool) for v in typing.get_args(member)) else "str")
            elif isinstance(origin, type) and issubclass(origin, enum.Enum):
                choices += [str(value.value) for value in origin]
                names.append("str")
            elif origin in plain:
                names.append(plain[origin])
            else:
                names.append("dict")
        if "bool" in names and "str" in names:
            choices = []
        default = field.default if field.default is not dataclasses.MISSING else None
        default = default.value if isinstance(default, enum.Enum) else default
        rows.append(
            {
                "name": field.name,
                "types": sorted(set(names)),
                "nullable": nullable,
                "choices": sorted(set(choices)),
                "default": default,
            }
        )
    return {"trl": trl.__version__, "fields": sorted(rows, key=lambda row: row["name"])}


def _flatten(annotation: Any, typing: Any, types: Any) -> list[Any]:
    """The members of a (nested) union, or the annotation alone."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return [leaf for member in typing.get_args(annotation) for leaf in _flatten(member, typing, types)]
    return [annotation]


if __name__ == "__main__":
    FIELDS_FILE.write_text(json.dumps(describe_installed(), indent=1) + "\n", encoding="utf-8")

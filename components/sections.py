"""The base of everything a person writes in a run config.

Each room owns its section as a subclass of `Section` in its `config.py`; `pipeline.config.RunConfig` composes them.
Fields are documented by the string under them: the reference page, the JSON Schema and error messages read it.
Config modules import pydantic and nothing heavier.
"""

import hashlib
import json
from typing import Any, Self

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A frozen part of the run config that refuses unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, validate_default=True)

    def to_json(self) -> str:
        """Canonical JSON, as a step receives it (keys sorted, so that equal sections are equal strings)."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The section a step was given.

        Args:
            text: JSON made by `to_json`, or written by a person in the KFP UI.

        Raises:
            pydantic.ValidationError: when the text is not a valid section.
        """
        return cls.model_validate_json(text)


def content_hash(*parts: Any) -> str:
    """Sha256 (hex, 64 characters) of JSON-able parts, the same on every machine and Python version."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()

"""How one step names an artifact to the next: `<uri>@sha256:<hex>`, the digest being that of its manifest.

A reference is a string parameter of the pipeline, so a cache keyed on parameters is keyed on content, and whoever
reads an artifact verifies that it is the one that was meant.
"""

import re
from dataclasses import dataclass
from typing import Self

from components.errors import BadInputError

_PATTERN = re.compile(r"(?P<uri>(?:file|s3)://.+)@sha256:(?P<digest>[0-9a-f]{64})")


@dataclass(frozen=True)
class Reference:
    """An artifact directory in a store, pinned by the digest of its manifest.

    Attributes:
        uri: `file:///abs/dir` or `s3://bucket/key` of the directory (no trailing slash).
        digest: sha256 of the bytes of its `manifest.json`, 64 hex digits.
    """

    uri: str
    digest: str

    def __str__(self) -> str:
        return f"{self.uri}@sha256:{self.digest}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a reference.

        Args:
            text: `<uri>@sha256:<64 hex digits>`.

        Raises:
            BadInputError: when the text has another form.
        """
        match = _PATTERN.fullmatch(text.strip())
        if match is None:
            raise BadInputError(
                f"artifact reference {text!r} is not of the form file:///dir@sha256:<64 hex digits> or "
                "s3://bucket/key@sha256:<64 hex digits>; copy it whole from the step that wrote it"
            )
        return cls(uri=match["uri"], digest=match["digest"])

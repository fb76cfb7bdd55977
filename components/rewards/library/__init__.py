"""The rewards that ship: import this package and `components.rewards.definition.LIBRARY` is full.

One module an aspect: `value` (is the answer right), `formats` (is it where and how the contract wants it), `lengths`,
`styles`, `code` (does the program pass its tests). A new reward is one decorated function in the module it belongs to
and a row in the tests; docs/reference/rewards.md is generated.
"""

from components.rewards.library import code, formats, lengths, styles, value

__all__ = ["code", "formats", "lengths", "styles", "value"]

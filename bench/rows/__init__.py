"""The rows, in the order of the table. A new row is a module here with a `ROW`, and its programs in peers/ and ours/."""

from bench.rows import reward
from bench.session import Row

ROWS: dict[str, Row] = {module.ROW.name: module.ROW for module in (reward,)}

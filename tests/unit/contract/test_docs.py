"""The contract's page in the docs says what the code does: its example runs, its table of numbers holds."""

import re
from pathlib import Path

from components.contract.number import read_number

PAGE = (Path(__file__).parents[3] / "docs" / "contract.md").read_text(encoding="utf-8")


def test_the_example_gives_the_values_it_shows() -> None:
    block = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert block
    names: dict[str, object] = {}
    shown = 0
    for line in block[1].splitlines():
        code, _, comment = line.partition("  # ")
        if line.startswith(("from", "contract =", "completion =")):
            exec(code, names)
        elif line:
            assert repr(eval(code, names)) == comment.split(":")[0].strip(), line
            shown += 1
    assert shown == 4


def test_the_table_of_numbers_holds() -> None:
    table = PAGE[PAGE.index("| kind | read | no number |") : PAGE.index("Decided, because")]
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in table.splitlines()[2:] if line]
    assert len(rows) > 10
    for _, read, refused in rows:
        for column, readable in ((read, True), (refused, False)):
            for double, single in re.findall(r"`` (.+?) ``|`([^`]+)`", column):
                text = (double or single).replace("\\|", "|")
                if text not in ("percent: fraction", "refuse"):
                    assert (read_number(text) is not None) is readable, text

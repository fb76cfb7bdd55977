"""The page, and that it is the results' own."""

import json
import re

import pytest

from bench.rendering import number, render
from bench.results import RESULTS, ROOT, Result
from bench.rows import ROWS


def rendered(folder, tmp_path):
    """The page and plots made from a folder of results."""
    target = tmp_path / "page"
    target.mkdir()
    render(folder, target)
    return (target / "README.md").read_text(encoding="utf-8"), sorted(p.name for p in (target / "plots").glob("*.svg"))


@pytest.fixture
def merged(tmp_path):
    """Results of one row with figures that appear nowhere else."""
    folder = tmp_path / "results"
    result = Result("merge", folder)
    for x, growth in ((2.25, False), (1.0, True)):
        case = result.case(f"{x} GiB", x=x, growth=growth)
        case["commands"] = {"peft": "python bench/peers/merge_peft.py", "ours": "python bench/ours/merge.py"}
        case["runs"] = {
            "peft": [{"wall_s": 31.7 * x, "rss_mib": 4321.0}],
            "ours": [{"wall_s": 12.3 * x, "rss_mib": 987.0}],
        }
    result.data["complete"] = True
    result.ask("peak memory over peft's", 0.2284, "<=", 0.3)
    result.ask("time over peft's", 0.777, "<=", 0.5)
    result.save()
    return folder


def test_figures_asks_and_commands_are_on_the_page(merged, tmp_path):
    page, plots = rendered(merged, tmp_path)

    assert "| peak memory over peft's | 0.228 | <= 0.3 | met |" in page
    assert "| time over peft's | 0.777 | <= 0.5 | missed |" in page
    assert "4,321" in page
    assert "python bench/peers/merge_peft.py" in page
    assert plots == ["merge-1.svg", "merge-2.svg"]
    assert "![Time to merge](plots/merge-1.svg)" in page


def test_rows_without_results_are_named_as_not_measured(merged, tmp_path):
    page, _ = rendered(merged, tmp_path)

    assert re.search(r"\| \[prep\].*not measured", page)
    assert "needs a GPU" in page


def test_a_stopped_measurement_is_said_to_be_one(merged, tmp_path):
    data = json.loads((merged / "merge.json").read_text())
    (merged / "merge.json").write_text(json.dumps(data | {"complete": False}))

    page, _ = rendered(merged, tmp_path)

    assert "stopped before its end" in page


def test_equal_results_give_equal_bytes(merged, tmp_path):
    first = tmp_path / "first"
    first.mkdir()
    one = rendered(merged, first)
    svg = (first / "page" / "plots" / "merge-1.svg").read_bytes()

    assert rendered(merged, tmp_path) == one
    assert (tmp_path / "page" / "plots" / "merge-1.svg").read_bytes() == svg


@pytest.mark.parametrize(
    ("value", "text"), [(1234.5, "1,234"), (3.0, "3"), (0.12345, "0.123"), ("text", "text"), (None, "None")]
)
def test_figures_are_written_to_three_digits(value, text):
    assert number(value) == text


def test_the_committed_page_is_made_from_the_committed_results(tmp_path):
    page, plots = rendered(RESULTS, tmp_path)

    assert page == (ROOT / "bench" / "README.md").read_text(encoding="utf-8")
    assert plots == sorted(path.name for path in (ROOT / "bench" / "plots").glob("*.svg"))


def test_committed_results_hold_no_folder_of_a_machine():
    for path in RESULTS.glob("*.json"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"/(tmp|home|root|work|Users)/", text), path.name
        assert json.loads(text)["size"] == "full"
        assert path.stem in ROWS

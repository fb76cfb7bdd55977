"""How the sides of a comparison are run."""

import json
import sys

import pytest

from bench import session as sessions
from bench.results import Result
from bench.session import Session, Side


@pytest.fixture
def ran(monkeypatch):
    """What was run, in order; each program "takes" the seconds its command names."""
    order = []

    def run(command, **settings):
        order.append(command[0])
        return {"wall_s": float(command[1]), "cpu_s": 0.0, "rss_mib": 1.0}

    monkeypatch.setattr(sessions, "run_program", run)
    return order


def sides(seconds):
    return {"peer": Side(["peer", str(seconds)]), "ours": Side(["ours", "1"])}


def test_sides_alternate_five_times_when_runs_are_short(tmp_path, ran):
    Session(Result("row", tmp_path), tmp_path).compare("work", sides(29))

    assert ran == ["peer", "ours"] * 5


def test_three_pairs_are_enough_where_a_run_is_long(tmp_path, ran):
    Session(Result("row", tmp_path), tmp_path).compare("work", sides(31))

    assert ran == ["peer", "ours"] * 3


def test_points_of_the_growth_plot_run_once(tmp_path, ran):
    Session(Result("row", tmp_path), tmp_path).compare("work", sides(1), x=10, growth=True)

    assert ran == ["peer", "ours"]


def test_every_run_is_on_disk_before_the_next_starts(tmp_path, monkeypatch):
    def run(command, **settings):
        if command[0] == "ours":
            raise KeyboardInterrupt
        return {"wall_s": 1.0, "rss_mib": 1.0}

    monkeypatch.setattr(sessions, "run_program", run)
    with pytest.raises(KeyboardInterrupt):
        Session(Result("row", tmp_path), tmp_path).compare("work", sides(1))

    written = json.loads((tmp_path / "row.json").read_text())
    assert len(written["cases"][0]["runs"]["peer"]) == 1


def test_a_pair_stopped_half_way_is_made_whole(tmp_path, ran):
    result = Result("row", tmp_path)
    result.case("work")["runs"] = {"peer": [{"wall_s": 1.0}], "ours": []}

    Session(result, tmp_path).compare("work", sides(1), pairs=2)

    assert ran == ["ours", "peer", "ours"]


def test_what_is_checked_after_a_run_joins_its_figures(tmp_path, ran):
    before = []
    side = Side(
        ["ours", "1"], before=lambda: before.append(1), after=lambda figures: {"found": len(before) * figures["wall_s"]}
    )

    case = Session(Result("row", tmp_path), tmp_path).compare("work", {"ours": side}, pairs=2)

    assert [run["found"] for run in case["runs"]["ours"]] == [1, 2]


def test_commands_are_shown_without_this_machines_folders(tmp_path):
    session = Session(Result("row", tmp_path), tmp_path / "scratch")
    state = sessions.STATE
    side = Side([sys.executable, str(sessions.ROOT / "bench/ours/merge.py"), str(tmp_path / "scratch"), str(state)])

    assert session.shown(side) == "python bench/ours/merge.py SCRATCH STATE"

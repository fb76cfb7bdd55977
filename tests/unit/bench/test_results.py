"""The JSON of a row."""

import json

import pytest

from bench import results
from bench.results import Result, medians, ratios


def test_medians_are_of_the_numbers_every_run_has():
    runs = [{"wall_s": 3.0, "curve": [1], "only_once": 1}, {"wall_s": 1.0}, {"wall_s": 10.0}]

    assert medians(runs) == {"wall_s": 3.0}


def test_ratios_are_ours_over_each_peer():
    sides = {"aws": {"wall_s": 4.0}, "boto3": {"wall_s": 1.0}, "ours": {"wall_s": 2.0}}

    assert ratios(sides) == {"aws": {"wall_s": 0.5}, "boto3": {"wall_s": 2.0}}


@pytest.mark.parametrize(
    ("value", "sense", "met"), [(0.9, "<=", True), (1.1, "<=", False), (1.1, ">=", True), (None, ">=", None)]
)
def test_an_ask_knows_whether_it_was_met(tmp_path, value, sense, met):
    result = Result("row", tmp_path)

    result.ask("figure", value, sense, 1.0)

    assert result.data["asks"][0]["met"] is met


def test_a_file_names_machine_versions_and_commit(tmp_path):
    Result("row", tmp_path).save()

    written = json.loads((tmp_path / "row.json").read_text())
    assert written["machine"]["cpus"] >= 1
    assert written["machine"]["python"].startswith("3.")
    assert written["versions"]["kfp"]
    assert len(written["commit"]["id"]) == 40
    assert written["complete"] is False


def test_going_on_keeps_the_runs_of_the_same_commit_only(tmp_path, monkeypatch):
    first = Result("row", tmp_path)
    first.case("work")["runs"]["ours"] = [{"wall_s": 1.0}]
    first.save()

    assert Result("row", tmp_path, keep=True).case("work")["runs"] == {"ours": [{"wall_s": 1.0}]}
    assert Result("row", tmp_path).case("work")["runs"] == {}
    monkeypatch.setattr(results, "commit", lambda: {"id": "f" * 40, "changed": False})
    assert Result("row", tmp_path, keep=True).case("work")["runs"] == {}

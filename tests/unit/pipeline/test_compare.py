"""`grpo runs`, `show`, `compare`, `reproduce` on runs in a SQLite file: figures, differences, refusals, the page."""

import dataclasses
import json
import re
import sqlite3
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml

sys.path.append(str(Path(__file__).parents[2]))

from tracked import HOLDOUT, make_config, make_pair, make_run, make_tracking

from components.errors import BadInputError, PipelineError
from components.judge_candidate.statistics import newcombe
from components.storage.store import open_store
from components.tracking.config import TrackingConfig
from pipeline import cli
from pipeline.comparing import reproduction
from pipeline.comparing.compare import (
    Setting,
    compare_runs,
    differing_settings,
    numbers,
)
from pipeline.comparing.compare_display import duration, signed
from pipeline.comparing.compare_page import choose_rows, render_page
from pipeline.comparing.reproduction import holdout_sentence, write_reproduction
from pipeline.comparing.tracked_runs import RunReader, TrackedRunView, tracking_of

HOSTILE = "</pre><script>alert(1)</script>[bold]"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """MLflow with a run of each kind, and their ids by what they are."""
    tracking = make_tracking(tmp_path_factory.mktemp("mlflow"))
    slow = make_config("arithmetic", 3, learning_rate=0.001)
    slow["evaluation"]["max_new_tokens"] = 99
    slow["rewards"]["brief"] = {"weight": 0.2, "options": {}, "use": "length"}
    ids = {
        "first": make_run(tracking, seed=1, right=0.5),
        "better": make_run(tracking, seed=2, right=0.9, text=HOSTILE),
        "slow": make_run(tracking, seed=3, config=slow),
        "elsewhere": make_run(tracking, "other", holdout="f" * 64),
        "broken": make_run(tracking, "broken", evaluated=False),
    }
    return tracking, ids


@pytest.fixture(scope="module")
def reader(place):
    return RunReader(place[0])


def grpo(capsys, *arguments) -> tuple[int, str, str]:
    """The command's exit code and what it printed."""
    with pytest.raises(SystemExit) as end:
        cli.main([str(argument) for argument in arguments])
    printed = capsys.readouterr()
    return int(end.value.code or 0), printed.out, printed.err


def chosen(reader, place, *names):
    return [reader.find_one(place[1][name])[0] for name in names]


# --- Finding runs ---------------------------------------------------------------------------------------------------


def test_a_run_is_found_by_id_by_its_start_and_by_name(reader, place):
    identity = place[1]["elsewhere"]
    assert reader.find_one(identity)[0].run_id == identity
    assert reader.find_one(identity[:10].upper())[0].run_id == identity
    assert reader.find_one("other") == (reader.find_one(identity)[0], 1)


def test_a_name_means_all_its_runs_oldest_first_and_one_means_the_newest(reader, place):
    found = [run.run_id for run in reader.find("arithmetic")]
    assert found == [place[1][name] for name in ("first", "better", "slow")]
    newest, count = reader.find_one("arithmetic")
    assert (newest.run_id, count) == (place[1]["slow"], 3)


@pytest.mark.parametrize("name", ["nothing", "it's", "both \" and '", "%", ""])
def test_an_unknown_run_is_refused_with_the_newest_named(reader, name):
    with pytest.raises(BadInputError, match="broken"):
        reader.find(name)


def test_a_start_that_fits_several_ids_is_refused(reader, monkeypatch):
    search = reader._search
    monkeypatch.setattr(reader, "_search", lambda condition, limit: [] if "name" in condition else search("", limit))
    with pytest.raises(BadInputError, match="write more of it"):
        reader.find("ab")


def test_the_newest_come_first_and_no_more_than_asked(reader, place):
    assert [run.run_id for run in reader.newest(2)] == [place[1]["broken"], place[1]["elsewhere"]]


def test_no_database_is_made_where_there_is_none(tmp_path):
    with pytest.raises(BadInputError, match="no MLflow database"):
        RunReader(make_tracking(tmp_path))
    assert not list(tmp_path.iterdir())


def test_a_database_that_is_not_mlflows_is_left_as_it_is(tmp_path):
    path = tmp_path / "mlflow.db"
    with sqlite3.connect(path) as database:
        database.execute("create table mine (a)")
    before = path.read_bytes()
    with pytest.raises(BadInputError, match="not one of MLflow's"):
        RunReader(make_tracking(tmp_path))
    assert path.read_bytes() == before
    path.write_text("no database at all, but long enough to be looked at")
    with pytest.raises(BadInputError, match="not a writable SQLite database"):
        RunReader(make_tracking(tmp_path))


def test_an_unknown_experiment_is_refused_with_those_there_are(place):
    with pytest.raises(BadInputError, match="grpo"):
        RunReader(place[0].model_copy(update={"experiment": "nope"}))


def test_the_options_win_over_the_config(tmp_path):
    config = Path(__file__).parents[3] / "configs" / "quickstart.yaml"
    found = tracking_of(config, ["tracking.experiment=a", "tracking.uri=http://a"], None, "b")
    assert (found.uri, found.experiment) == ("http://a", "b")
    assert tracking_of(None, [], None, None) == TrackingConfig()


# --- Comparing ------------------------------------------------------------------------------------------------------


def test_a_difference_on_the_same_rows_is_paired(reader, place):
    first, better = chosen(reader, place, "first", "better")
    comparison = compare_runs(reader, [first, better])
    outcomes = [[row["candidate_correct_strict"] for row in comparison.samples[run.run_id]] for run in (first, better)]
    pairs = list(zip(outcomes[1], outcomes[0], strict=True))
    low, high = newcombe(*(pairs.count(kind) for kind in ((True, True), (True, False), (False, True), (False, False))))
    delta = comparison.deltas["accuracy_strict"][1]
    assert delta.value == pytest.approx(sum(outcomes[1]) / 60 - sum(outcomes[0]) / 60)
    assert (delta.low, delta.high) == (pytest.approx(low), pytest.approx(high))
    assert comparison.paired == (2,)
    assert comparison.deltas["accuracy_strict"][0] is None


def test_without_rows_the_interval_comes_from_the_two_intervals_and_is_said(reader, place, monkeypatch):
    monkeypatch.setattr("pipeline.comparing.compare.MOST_PAIRED", 1)
    comparison = compare_runs(reader, chosen(reader, place, "first", "better"))
    delta = comparison.deltas["accuracy_strict"][1]
    assert delta.low == pytest.approx(delta.value - 0.1 * 2**0.5)
    assert comparison.paired == ()
    assert any("own intervals" in note for note in comparison.notes)


def test_rows_that_do_not_give_the_figure_are_not_paired(reader, place, monkeypatch):
    rows = [make_pair(index, True) for index in range(60)]
    monkeypatch.setattr("pipeline.comparing.compare.read_samples", lambda _, runs: {run.run_id: rows for run in runs})
    comparison = compare_runs(reader, chosen(reader, place, "first", "better"))
    delta = comparison.deltas["accuracy_strict"][1]
    assert delta.high - delta.value == pytest.approx(0.1 * 2**0.5)


def test_no_difference_between_two_holdouts(reader, place):
    comparison = compare_runs(reader, chosen(reader, place, "first", "elsewhere"))
    assert comparison.deltas["accuracy_lenient"] == (None, None)
    assert any("another holdout" in note for note in comparison.notes)


def test_a_run_that_was_not_evaluated_is_listed_and_said(reader, place):
    comparison = compare_runs(reader, chosen(reader, place, "broken", "first"))
    assert comparison.runs[0].figure("accuracy_strict") is None
    assert any("run 1: not evaluated" in note for note in comparison.notes)


def test_what_differs_is_found_also_where_mlflow_has_no_parameter_for_it(reader, place):
    comparison = compare_runs(reader, chosen(reader, place, "first", "slow"))
    found = {setting.name: setting.values for setting in comparison.settings}
    assert found["run.seed"] == ("1", "3")
    assert found["training.learning_rate"] == ("0.0005", "0.001")
    assert found["rewards.brief.weight"] == (None, "0.2")
    assert found["evaluation.max_new_tokens"] == ("56", "99")
    assert "rewards.brief.options" not in found
    assert any("measured differently (evaluation.max_new_tokens)" in note for note in comparison.notes)


def test_files_that_cannot_be_read_leave_the_table_and_a_note(reader, place, monkeypatch):
    def fail(run, path):
        raise PipelineError("the store is down")

    monkeypatch.setattr(reader, "read_file", fail)
    comparison = compare_runs(reader, chosen(reader, place, "first", "better"))
    assert comparison.deltas["accuracy_strict"][1] is not None
    assert any("the store is down" in note for note in comparison.notes)


def test_an_artifact_counts_by_digest_and_not_by_place():
    digest = "a" * 64
    same = [{"dataset": f"{place}/datasets/x@sha256:{digest}"} for place in ("file:///a", "s3://b")]
    assert differing_settings(same) == []
    assert differing_settings([*same, {"dataset": f"file:///a@sha256:{'b' * 64}"}])[0].values[2] == f"sha256 {'b' * 12}"


def test_values_are_grouped_by_the_runs_that_have_them():
    assert Setting("k", ("1", "2", "1", None)).groups() == [("1", [1, 3]), ("2", [2]), (None, [4])]
    assert numbers([2, 3, 4, 7]) == "runs 2-4, 7"
    assert numbers([5]) == "run 5"


# --- Tables and page ------------------------------------------------------------------------------------------------


def test_the_commands_print_what_was_asked_for(capsys, place, tmp_path):
    where = ("--tracking-uri", place[0].uri)
    code, out, _ = grpo(capsys, "runs", *where)
    assert code == 0
    assert all(identity[:8] in out for identity in place[1].values())
    code, out, err = grpo(capsys, "show", "arithmetic", *where)
    assert code == 0
    assert "It got [better]." in out
    assert "evaluated 4 times" in out
    assert "newest of 3 runs" in err
    code, out, _ = grpo(capsys, "show", "broken", *where)
    assert code == 0
    assert "not judged" in out
    page = tmp_path / "page.html"
    code, out, _ = grpo(capsys, "compare", place[1]["first"], "arithmetic", *where, "--html", page)
    assert code == 0
    assert out.count(place[1]["first"][:8]) == 1  # named twice, compared once
    assert "training.learning_rate" in out
    assert page.exists()


@pytest.mark.parametrize("width", ["80", "200"])
def test_tables_keep_within_the_width(capsys, place, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", width)
    for command in (("runs",), ("compare", "arithmetic")):
        _, out, _ = grpo(capsys, *command, "--tracking-uri", place[0].uri)
        table = [line for line in out.splitlines() if "arithm" in line]
        assert table
        assert max(map(len, table)) <= int(width)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("compare", "nothing"), "no run named 'nothing'"),
        (("show", "nothing"), "no run named"),
        (("reproduce", "broken"), "left no config.yaml"),
        (("runs", "--experiment", "nope"), "no experiment 'nope'"),
        (("compare", "arithmetic", "--html", "/nowhere/at/all.html"), "folder that exists"),
        (("runs", "--config", "/nowhere.yaml"), "does not exist"),
    ],
)
def test_a_fault_of_a_person_is_one_sentence_and_exit_code_2(capsys, place, arguments, said):
    where = () if "--config" in arguments else ("--tracking-uri", place[0].uri)
    code, _, err = grpo(capsys, *arguments, *where)
    assert code == 2
    assert said in err
    assert "Traceback" not in err


def test_the_page_needs_nothing_else_and_escapes_what_models_wrote(reader, place):
    page = render_page(compare_runs(reader, chosen(reader, place, "first", "better", "slow")), reader)
    HTMLParser().feed(page)
    assert "<script" not in page
    assert "&lt;/pre&gt;&lt;script&gt;" in page
    assert not re.findall(r'(?:src|href)="(?!#)', page)
    assert page.count("<svg") == 4  # total, one reward, groups without spread, length
    assert "runs disagree" in page
    assert "coloured where the interval" in page


def test_a_page_of_many_runs_draws_the_first_and_says_so(reader, place):
    runs = chosen(reader, place, *["first", "better", "slow", "elsewhere", "broken"] * 2)
    page = render_page(compare_runs(reader, runs), reader)
    assert "Curves and samples of the first 7 runs" in page
    assert "(runs 1-2" in page or "(runs 1, " in page or "(runs 1-" in page


def test_rows_the_runs_disagree_on_come_first():
    runs = [_view("a"), _view("b")]
    samples = {
        "a": [make_pair(1, True), make_pair(2, True), make_pair(3, False)],
        "b": [make_pair(1, True), make_pair(2, False), make_pair(3, False)],
    }
    rows = choose_rows(runs, samples)
    assert [row["label"] for row in rows] == ["runs disagree", "all wrong", "all right"]
    assert [answer["right"] for answer in rows[0]["answers"]] == [True, False]
    assert choose_rows(runs, {}) == []


def test_nothing_is_not_minus_nothing():
    assert signed(-0.0001) == "0.0"
    assert signed(-0.01) == "-1.0"
    assert [duration(s) for s in (None, 59, 600, 7200)] == ["-", "59 s", "10 min", "2.0 h"]


# --- Repeating a run ------------------------------------------------------------------------------------------------


def _view(identity="a" * 32, **tags):
    tags = {"grpo.holdout_fingerprint": HOLDOUT} | tags
    return TrackedRunView(identity, "r", "FINISHED", 0, None, {}, {}, tags)


class _Files:
    """Stands for a reader whose run left these files."""

    def __init__(self, **files):
        self.files = files

    def read_file(self, run, path):
        return self.files.get(path.partition(".")[0])


@pytest.fixture
def finished(tmp_path):
    """A finished run on this disk: its config, and tags that say what it read."""
    store = open_store(str(tmp_path / "store"))
    data, model, rewards = tmp_path / "train.jsonl", tmp_path / "model", tmp_path / "code"
    data.write_text("{}")
    for folder in (model, rewards):
        folder.mkdir()
    (model / "config.json").write_text("{}")
    (rewards / "mine.py").write_text("def brief(): ...")
    sources = {"train": {"kind": "files", "files": [{"name": "train.jsonl", "sha256": reproduction._sha256(data)}]}}
    sources["holdout"] = {"kind": "hub", "hub": "some/set", "revision": "c0ffee"}
    base = store.put(model, "models/a", provenance={"revision": None, "converted_from": None})
    holdout = store.put(rewards, "holdouts/a", provenance={"sources": sources})
    code = store.put(rewards, "rewards/a", provenance={})
    config = yaml.safe_load((Path(__file__).parents[3] / "configs" / "quickstart.yaml").read_text())
    config["model"]["source"] = str(model)
    config["data"]["train"] = {"path": str(data)}
    config["data"]["holdout"] = {"hub": "some/set", "split": "test"}
    config["store"] = {"uri": str(tmp_path / "store")}
    config["rewards"]["brief"] = {
        "use": f"{rewards / 'gone.py'}:brief",
        "aspect": "length",
        "weight": 0.1,
        "stored": {"reference": str(code), "file": "mine.py", "sha256": "0" * 64},
    }
    return config, _view(**{"grpo.base": str(base), "grpo.holdout": str(holdout), "grpo.git_commit": "abc"})


def test_a_repeat_writes_config_commands_and_reward_files(finished, tmp_path, monkeypatch):
    monkeypatch.setattr(reproduction, "git_commit", lambda: "abc")
    config, run = finished
    written = write_reproduction(_Files(config=yaml.safe_dump(config)), run, tmp_path / "again")
    assert written.limits == ()
    again = yaml.safe_load((tmp_path / "again" / "config.yaml").read_text())
    assert again["rewards"]["brief"]["use"] == "rewards/mine.py:brief"
    assert (tmp_path / "again" / "rewards" / "mine.py").read_text() == "def brief(): ..."
    assert again["data"]["holdout"]["revision"] == "c0ffee"  # what was resolved then is pinned now
    assert written.commands[-1] in (tmp_path / "again" / "commands.sh").read_text()
    assert {path.name for path in written.files} == {"config.yaml", "commands.sh", "mine.py"}


def test_a_runs_name_never_becomes_a_command(finished, tmp_path):
    config, run = finished
    named = dataclasses.replace(run, name="fine\nrm -rf /")
    write_reproduction(_Files(config=yaml.safe_dump(config)), named, tmp_path / "again")
    lines = (tmp_path / "again" / "commands.sh").read_text().splitlines()
    assert not any(line.startswith("rm") for line in lines)
    assert lines[1].startswith("# Repeats run fine rm")


def test_what_cannot_be_repeated_is_said(finished, tmp_path, monkeypatch):
    monkeypatch.setattr(reproduction, "git_commit", lambda: "def")
    config, run = finished
    Path(config["data"]["train"]["path"]).write_text("other")
    (Path(config["model"]["source"]) / "config.json").write_text("[]")
    config["rewards"]["brief"]["random"] = True
    run = _view(**run.tags, **{"version.pytest": "0.1", "version.absent": "1", "grpo.device": "NVIDIA H100"})
    said = "\n".join(write_reproduction(_Files(config=yaml.safe_dump(config)), run, tmp_path / "again").limits)
    for part in (
        "commit def, the run's was at commit abc",
        "absent 1 (here not installed), pytest 0.1",
        "train.jsonl has changed",
        "model has changed (config.json)",
        "brief is random",
        "NVIDIA H100",
    ):
        assert part in said


def test_missing_inputs_and_a_store_that_is_gone_are_said(finished, tmp_path):
    config, run = finished
    Path(config["data"]["train"]["path"]).unlink()
    config["rewards"].pop("brief")
    said = "\n".join(write_reproduction(_Files(config=yaml.safe_dump(config)), run, tmp_path / "one").limits)
    assert "data.train: " in said
    assert "is not on this machine" in said
    config["store"]["uri"] = str(tmp_path / "gone")
    said = "\n".join(write_reproduction(_Files(config=yaml.safe_dump(config)), run, tmp_path / "two").limits)
    assert "were not compared" in said


def test_a_config_this_version_does_not_take_is_said(finished, tmp_path):
    config, run = finished
    config["training"]["no_such_field"] = 1
    said = "\n".join(write_reproduction(_Files(config=yaml.safe_dump(config)), run, tmp_path / "again").limits)
    assert "does not take the config" in said


def test_a_folder_with_something_in_it_is_refused(finished, tmp_path):
    with pytest.raises(BadInputError, match="not an empty folder"):
        write_reproduction(_Files(config="{}"), finished[1], tmp_path)


def test_the_holdouts_use_is_counted_then_and_now(tmp_path):
    store = open_store(str(tmp_path / "store"))
    (tmp_path / "evaluation").mkdir()
    (tmp_path / "evaluation" / "metrics.json").write_text(json.dumps({}))
    for key in ("a-1", "b-1", "c-1"):
        store.put(tmp_path / "evaluation", f"evaluations/{HOLDOUT[:12]}/{key}", provenance={})
    config = {"store": {"uri": str(tmp_path / "store")}}
    said = holdout_sentence(_view(**{"grpo.holdout_uses": "2"}), config)
    assert "2 times when this run was judged" in said
    assert "3 times by now" in said
    assert "by now" not in holdout_sentence(_view(**{"grpo.holdout_uses": "2"}), None)

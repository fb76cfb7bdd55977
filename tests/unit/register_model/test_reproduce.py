"""What the report and `grpo reproduce` say on repeating a run, and how often its holdout was used."""

import json
import shlex
import subprocess
from pathlib import Path

import pytest

from components.register_model import reproduce
from components.register_model.holdout_use import count_holdout_uses
from components.register_model.readings import EvaluationReading, Reading, describe_source
from components.register_model.reproduce import fetch_command, git_commit, reproduce_commands
from components.storage.store import open_store

CONFIG = {"store": {"uri": "/data/store"}, "tracking": {"experiment": "grpo"}, "run": {"name": "a", "seed": 7}}


def reading(**training):
    evaluation = EvaluationReading({}, {}, Path("unread"))
    record = {"seconds": 7200.0, "tokens": 1_000_000.0, "peak_memory_mib": 512.0, "versions": {"device": "CPU"}}
    files = {"kind": "files", "rows_kept": 9, "rows_read": 10, "files": [{"name": "t.jsonl", "sha256": "ab" * 32}]}
    return Reading(
        verdict={},
        base=evaluation,
        candidate=evaluation,
        training=record | training,
        dataset={"sources": {"train": files}},
        holdout={"sources": {"holdout": {"hub": "some/set", "revision": "0123456789abcdef"}}},
        smoke={},
        base_provenance={"licence": "apache-2.0"},
        verdict_folder=Path("unread"),
    )


def test_a_repeat_gets_a_store_and_an_experiment_of_its_own():
    command = shlex.split(reproduce_commands(CONFIG, folder="again", run_id="0123456789")[-1])
    assert command[:3] == ["grpo", "run", "again/config.yaml"]
    assert "store.uri=again/store" in command
    assert "tracking.experiment=grpo-repeat" in command


def test_a_repeat_of_a_run_in_s3_stays_in_its_bucket():
    config = CONFIG | {"store": {"uri": "s3://bucket/grpo"}}
    assert (
        "store.uri=s3://bucket/grpo/repeat-01234567" in reproduce_commands(config, folder="a", run_id="0123456789")[0]
    )


def test_commit_and_versions_come_before_the_run_and_builds_are_left_out():
    versions = {"torch": "2.13.0+cpu", "trl": "1.16.0", "mlflow": "3.0"}
    lines = reproduce_commands(CONFIG, folder="a", run_id="0" * 32, commit="abc-changed", versions=versions)
    assert lines[:2] == ["git checkout abc", "pip install torch==2.13.0 trl==1.16.0"]


def test_the_command_that_fetches_survives_a_shell():
    words = ["grpo", "reproduce", "r1", "--tracking-uri", "http://host:5000", "--experiment", "my runs", "-o", "again"]
    assert shlex.split(fetch_command("r1", "http://host:5000", "my runs", "again")) == words


def test_the_commit_comes_from_the_environment_where_there_is_no_checkout(monkeypatch):
    monkeypatch.setenv("GRPO_GIT_COMMIT", "feed")
    assert git_commit() == "feed"


def test_an_edited_checkout_is_said(tmp_path: Path, monkeypatch):
    monkeypatch.delenv("GRPO_GIT_COMMIT", raising=False)
    place = tmp_path / "components" / "register_model" / "reproduce.py"
    place.parent.mkdir(parents=True)
    place.write_text("1")
    monkeypatch.setattr(reproduce, "__file__", str(place))
    assert git_commit() == ""
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "x"]):
        subprocess.run([*git, *arguments], check=True)
    commit = git_commit()
    assert len(commit) == 40
    place.write_text("2")
    assert git_commit() == f"{commit}-changed"


def test_facts_say_what_was_trained_on_what():
    facts = reading().facts(CONFIG | {"data": {"seed": 3}}, "abc")
    assert facts["Data, train"] == "t.jsonl (sha256 abababababab…), 9 of 10 rows"
    assert facts["Data, holdout"] == "some/set at 0123456789ab"
    assert facts["Seeds"] == "run 7, split 3"
    assert facts["Training took"] == "2.0 h on CPU"
    assert facts["Code"] == "commit abc"
    assert "Code" not in reading().facts(CONFIG, "")


def test_a_source_of_many_files_is_shown_short():
    files = [{"name": f"{n}.csv", "sha256": "0" * 64} for n in range(5)]
    assert describe_source({"files": files}).endswith("and 2 files more")


@pytest.mark.parametrize(("device", "hours"), [("CPU", 0.0), ("NVIDIA H100", 4.0)])
def test_gpu_hours_count_gpus_and_a_cpu_costs_none(device, hours):
    assert reading(versions={"device": device}).cost(2)["cost/gpu_hours"] == hours


def test_scoring_the_same_completions_again_is_no_second_use_of_the_holdout(tmp_path: Path):
    store = open_store(str(tmp_path / "store"))
    content = tmp_path / "evaluation"
    content.mkdir()
    (content / "metrics.json").write_text(json.dumps({}))
    assert count_holdout_uses(store, "f" * 64) == 0
    for key in ("ffffffffffff/aa-11", "ffffffffffff/aa-22", "ffffffffffff/bb-11", "eeeeeeeeeeee/cc-11"):
        store.put(content, f"evaluations/{key}", provenance={})
    assert count_holdout_uses(store, "f" * 64) == 2

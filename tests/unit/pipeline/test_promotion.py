"""A promotion happens whole or not at all: gates, log, lock, and being killed at any step."""

import json
import multiprocessing
import os
import signal
import time
from pathlib import Path
from threading import Thread

import pytest
from promotion_world import World, served_endpoint

from components.errors import BadInputError, GateFailedError, PipelineError
from components.storage.config import StoreConfig
from components.storage.lease import hold
from components.storage.manifest import DamagedArtifactError
from pipeline.promoting import promotion
from pipeline.promoting.promotion import Request, open_desk, promote, settle
from pipeline.promoting.promotion_log import Entry, previous_champion
from pipeline.promoting.registered import parse_name, read_version, resolve
from pipeline.promoting.targets.config import ServingConfig


@pytest.fixture
def endpoint():
    with served_endpoint() as server:
        yield server


@pytest.fixture
def world(tmp_path, endpoint, monkeypatch):
    made = World(tmp_path, f"http://127.0.0.1:{endpoint.server_port}")
    endpoint.rights = made.rights
    endpoint.deployed = made.target.path
    monkeypatch.setattr(promotion, "open_target", lambda config, home: made.target)
    made.register("1", 200)
    made.register("2", 202)
    return made


def test_the_first_promotion_is_served_probed_and_logged(world, endpoint):
    outcome = world.promote("1", reason="first")
    assert outcome.changed
    assert world.is_quiet()
    assert world.champion == "1"
    assert world.log == [("promoted", "1", None)]
    assert len(endpoint.asked) == 50
    assert set(endpoint.asked) == {1, 2}, "half of the prompts are asked without the system message"
    entry = world.desk.log.entries()[0]
    assert (entry.by, entry.reason, entry.forced) == ("ada", "first", "")
    tags = world.mlflow.state["versions"]["1"]["tags"]
    assert tags["promotion.by"] == "ada"
    assert world.steps == ["read", "verify", "evidence", "lock", "alias", "deploy", "wait", "probe", "log"]


def test_promoting_the_same_version_twice_changes_nothing(world, endpoint):
    world.promote("1")
    endpoint.asked.clear()
    assert not world.promote("1").changed
    assert endpoint.asked == []
    assert len(world.log) == 1


def test_a_champion_that_is_no_longer_served_is_served_again(world):
    world.promote("1")
    world.target.remove("sums")
    assert world.promote("1").changed
    assert world.is_quiet()
    assert previous_champion(world.desk.log.entries(), "1") is None


def test_a_dry_run_changes_nothing(world, tmp_path):
    before = sorted((str(path), path.stat().st_mtime_ns) for path in tmp_path.rglob("*"))
    outcome = world.promote("1", dry_run=True)
    assert not outcome.changed
    assert outcome.plan.changes == "+ version 1"
    assert sorted((str(path), path.stat().st_mtime_ns) for path in tmp_path.rglob("*")) == before


def test_a_worse_version_is_refused_and_force_is_recorded(world, endpoint):
    world.register("3", 150)
    world.promote("1")
    with pytest.raises(GateFailedError, match="strict accuracy 83.3% .champion sums/1. -> 62.5% .sums/3.") as refusal:
        world.promote("3")
    assert refusal.value.exit_code == 3
    assert (world.champion, len(world.log)) == ("1", 1)
    assert world.promote("3", force="a demonstration").changed
    assert world.desk.log.entries()[-1].forced == "a demonstration"
    assert world.mlflow.state["versions"]["3"]["tags"]["promotion.forced"] == "a demonstration"
    assert world.rollback().changed
    assert world.champion == "1"
    assert world.is_quiet()
    assert world.log[-1] == ("rolled back", "1", "3")


def test_a_version_as_good_as_the_champion_is_promoted(world):
    world.promote("1")
    assert world.promote("2").changed
    assert world.champion == "2"


@pytest.mark.parametrize("verdict", ["fail", "inconclusive"])
def test_a_version_without_a_passed_verdict_is_refused(world, verdict):
    world.register("3", 200, verdict=verdict)
    with pytest.raises(GateFailedError, match=f"is {verdict}"):
        world.promote("3")
    assert world.champion is None


def test_another_holdout_is_named_and_an_evaluation_made_later_is_found(world):
    world.register("3", 205, holdout="x" * 64)
    world.promote("1")
    with pytest.raises(GateFailedError, match="holdout_fingerprint.*grpo evaluate sums/1 --like sums/3"):
        world.promote("3")
    digest = read_version(world.mlflow, "sums", "1").weights.digest
    world.evaluate(digest, 200, "x" * 64, "float32", key=f"evaluations/{'x' * 12}/later")
    assert world.promote("3").changed


def test_replies_that_are_not_the_recorded_ones_put_everything_back(world, endpoint):
    world.promote("1")
    endpoint.right = 100
    with pytest.raises(GateFailedError, match="50 of the evaluation's prompts"):
        world.promote("2")
    assert world.champion == "1"
    assert world.is_quiet()
    assert world.log[-1] == ("undone", "2", "1")
    assert "differ" in world.desk.log.entries()[-1].error


def test_few_flips_are_allowed(world, endpoint):
    endpoint.right = 196
    assert world.promote("1").changed


def test_a_deployment_that_fails_puts_everything_back(world):
    world.promote("1")
    world.target.broken.add("2")
    with pytest.raises(PipelineError, match="does not start"):
        world.promote("2")
    assert world.champion == "1"
    assert world.is_quiet()


def test_weights_altered_by_one_byte_are_refused_by_name(world):
    weights = Path(read_version(world.mlflow, "sums", "1").weights.uri.removeprefix("file://")) / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[3] ^= 1
    weights.write_bytes(content)
    with pytest.raises(DamagedArtifactError, match=r"model\.safetensors"):
        world.promote("1", force="whatever")
    assert world.champion is None


def test_a_second_promotion_is_refused_while_one_is_under_way(world):
    log = world.desk.log
    with hold(world.store, log.lease, what="a promotion by grace"), pytest.raises(PipelineError, match="by grace"):
        world.promote("1")
    assert world.champion is None


def test_a_champion_that_changed_meanwhile_is_compared_with_again(world):
    world.register("3", 150)
    world.promote("3")

    def another(name):
        if name == "lock":
            world.on_step = lambda name: None
            world.promote("1")

    world.register("4", 152)
    world.on_step = another
    with pytest.raises(GateFailedError, match="champion sums/1"):
        world.promote("4")
    assert world.champion == "1"


def killed(world, number, step):
    """Promote in a process that gets SIGKILL when a step begins."""

    def act():
        def die(name="tags"):
            if name == step:
                os.kill(os.getpid(), signal.SIGKILL)

        world.on_step = die
        world.mlflow.on_tag = die
        world.promote(number)

    process = multiprocessing.get_context("fork").Process(target=act)
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL


@pytest.mark.parametrize("step", ["lock", "alias", "deploy", "wait", "probe"])
@pytest.mark.parametrize("first", [True, False])
def test_killed_before_its_probe_passed_it_is_undone_by_the_next_command(world, step, first):
    if not first:
        world.promote("1")
    killed(world, "2", step)
    settle(world.desk)
    assert world.champion == (None if first else "1")
    assert world.is_quiet()
    expected = [] if first else [("promoted", "1", None)]
    undone = [] if step == "lock" else [("undone", "2", None if first else "1")]
    assert world.log == expected + undone
    assert world.promote("2").changed


@pytest.mark.parametrize("step", ["log", "tags"])
def test_killed_after_its_probe_passed_it_is_finished_once_by_the_next_command(world, step):
    world.promote("1")
    killed(world, "2", step)
    assert "finished" in settle(world.desk)
    assert world.champion == "2"
    assert world.is_quiet()
    assert world.log == [("promoted", "1", None), ("promoted", "2", "1")]
    assert world.mlflow.state["versions"]["2"]["tags"]["promotion.target"]
    assert world.rollback().changed
    assert world.champion == "1"


def test_a_promotion_under_way_is_not_repaired(world):
    journal_seen = []

    def look(name):
        if name == "probe":
            world.on_step = lambda name: None
            journal_seen.append(settle(world.desk))

    world.on_step = look
    assert world.promote("1").changed
    assert journal_seen == [None]


def test_interrupted_on_another_machine_a_local_server_is_repaired_there(world, monkeypatch):
    killed(world, "1", "wait")
    monkeypatch.setattr(promotion.socket, "gethostname", lambda: "elsewhere")
    with pytest.raises(PipelineError, match="run `grpo history sums` there"):
        world.promote("2")


def test_rolling_back_walks_back_one_champion_at_a_time(world):
    world.register("3", 210)
    for number in ("1", "2", "3"):
        world.promote(number)
    assert world.rollback().changed
    assert world.champion == "2"
    assert world.rollback().changed
    assert world.champion == "1"
    with pytest.raises(BadInputError, match="no champion of sums before 1"):
        world.rollback()


def entry(action, version, previous):
    return Entry("", "", action, version, previous, "", "", "", "")


def test_the_champion_before_is_read_off_the_log():
    log = [entry("promoted", "1", None), entry("promoted", "2", "1"), entry("undone", "9", "2")]
    assert previous_champion(log, "2") == "1"
    assert previous_champion(log, "7") is None, "the alias was moved by somebody else"
    log += [entry("rolled back", "1", "2"), entry("promoted", "3", "1"), entry("promoted", "3", "3")]
    assert previous_champion(log, "3") == "1"
    log += [entry("promoted", "1", "3")]
    assert previous_champion(log, "1") == "3"


def test_an_entry_of_the_log_is_written_once_and_never_changed(world):
    log = world.desk.log
    first = Entry("a", "now", "promoted", "1", None, "ada", "", "", "local")
    log.append(first)
    log.append(first)
    log.append(Entry("b", "now", "promoted", "2", "1", "ada", "", "", "local"))
    assert [found.id for found in log.entries()] == ["a", "b"]


def test_another_store_than_the_one_the_promotions_are_kept_in_is_refused(world, tmp_path):
    world.promote("1")
    with pytest.raises(BadInputError, match="are kept in"):
        open_desk(world.mlflow, "sums", home=tmp_path, on_step=print, store=StoreConfig(uri=str(tmp_path / "other")))


@pytest.mark.parametrize("text", ["", "a/b/c", "sums/x", "sums@", "sums/"])
def test_a_name_of_another_form_is_refused(text):
    with pytest.raises(BadInputError, match="NAME/VERSION"):
        parse_name(text)


def test_a_name_alone_means_its_champion_else_its_newest_version(world):
    assert resolve(world.mlflow, "sums").version == "2"
    world.promote("1")
    assert resolve(world.mlflow, "sums").version == "1"
    assert resolve(world.mlflow, "sums@champion").version == "1"
    with pytest.raises(BadInputError, match="no version '9'"):
        resolve(world.mlflow, "sums/9")
    with pytest.raises(BadInputError, match="there are: sums"):
        resolve(world.mlflow, "other")


def test_waiting_for_another_promotion(world):
    lease = hold(world.store, world.desk.log.lease, what="a promotion by grace")
    lease.__enter__()
    Thread(target=lambda: (time.sleep(0.5), lease.__exit__(None, None, None)), daemon=True).start()
    version = read_version(world.mlflow, "sums", "1")
    desk = open_desk(world.mlflow, "sums", home=world.folder, on_step=lambda name, text: None, wait_s=20)
    assert promote(desk, Request(version, ServingConfig(), "ada")).changed


def test_a_promotion_that_lost_its_lock_touches_nothing_more(world, monkeypatch):
    world.promote("1")

    def take_over(name):
        if name == "deploy":
            world.on_step = lambda name: None
            note = world.store.read_note(f"leases/{world.desk.log.lease}.lease")
            other = {**json.loads(note.content), "owner": "another", "pid": os.getppid(), "place": "elsewhere"}
            world.store.write_note(
                f"leases/{world.desk.log.lease}.lease", json.dumps(other).encode(), replaces=note.tag
            )
            monkeypatch.setattr(time, "monotonic", lambda real=time.monotonic: real() + 30)

    world.on_step = take_over
    with pytest.raises(PipelineError, match="was taken over"):
        world.promote("2")
    assert world.desk.log.journal().entry.version == "2", "left for whoever took over"

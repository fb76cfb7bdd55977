"""A promotion happens whole or not at all: gates, log, lock, and being killed at any step."""

import functools
import json
import multiprocessing
import os
import signal
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import yaml

from components.contract import build_contract
from components.contract.config import ContractConfig
from components.errors import BadInputError, GateFailedError, PipelineError
from components.storage.config import StoreConfig
from components.storage.lease import hold
from components.storage.manifest import DamagedArtifactError
from components.storage.store import open_store
from pipeline import promotion
from pipeline.promotion import Request, open_desk, promote, rollback, settle
from pipeline.promotion_log import Entry, previous_champion
from pipeline.registered import champion, parse_name, read_version, resolve
from pipeline.targets.config import ServingConfig

ROWS = 240
CONTRACT = build_contract(ContractConfig())


class FileMlflow:
    """The few calls of MLflow's client that a promotion makes, kept in a file so that they survive a kill."""

    def __init__(self, path):
        self.path = path
        self.on_tag = lambda: None
        if not path.exists():
            self.state = {"aliases": {}, "tags": {}, "versions": {}}

    @property
    def state(self):
        return json.loads(self.path.read_text())

    @state.setter
    def state(self, value):
        fresh = self.path.with_suffix(".new")
        fresh.write_text(json.dumps(value))
        fresh.replace(self.path)

    def change(self, *keys, value):
        state = self.state
        place = state
        for key in keys[:-1]:
            place = place[key]
        if value is None:
            place.pop(keys[-1], None)
        else:
            place[keys[-1]] = value
        self.state = state

    def search_model_versions(self, query):
        known = self.state["versions"] if query == "name='sums'" else {}
        return [SimpleNamespace(version=number) for number in known]

    def search_registered_models(self, max_results):
        return [SimpleNamespace(name="sums")]

    def get_model_version(self, name, number):
        return SimpleNamespace(**self.state["versions"][number])

    def get_registered_model(self, name):
        return SimpleNamespace(aliases=self.state["aliases"], tags=self.state["tags"])

    def set_registered_model_alias(self, name, alias, number):
        self.change("aliases", alias, value=number)

    def delete_registered_model_alias(self, name, alias):
        self.change("aliases", alias, value=None)

    def set_registered_model_tag(self, name, tag, value):
        self.change("tags", tag, value=value)

    def set_model_version_tag(self, name, number, tag, value):
        self.on_tag()
        self.change("versions", number, "tags", tag, value=value)

    def download_artifacts(self, run_id, path, folder):
        target = Path(folder) / path
        target.write_text((self.path.parent / f"{run_id}.yaml").read_text())
        return str(target)


class FileTarget:
    """A target whose deployment is a file."""

    def __init__(self, path, url):
        self.path = path
        self.url = url
        self.broken = set()

    def changes(self, served):
        return f"+ version {served.version}"

    def deployed(self, name):
        return self.path.read_text() if self.path.exists() else None

    def serves(self, served):
        return self.deployed(served.name) == served.version

    def deploy(self, served):
        if served.version in self.broken:
            raise PipelineError("the server does not start")
        self.path.write_text(served.version)

    def wait(self, served):
        return self.url

    def remove(self, name):
        self.path.unlink(missing_ok=True)


class World:
    """Everything a promotion touches, in a folder."""

    def __init__(self, folder, url):
        self.folder = folder
        self.store = open_store(str(folder / "store"))
        self.mlflow = FileMlflow(folder / "mlflow.json")
        self.target = FileTarget(folder / "deployed", url)
        self.steps = []
        self.on_step = lambda name: None

    def register(self, number, right, *, verdict="pass", holdout="h" * 64, dtype="float32"):
        """A version that answers this many of the rows right."""
        self.rights[number] = right
        weights = self.folder / f"weights-{number}"
        weights.mkdir()
        (weights / "config.json").write_text("{}")
        (weights / "model.safetensors").write_bytes(f"weights {number}".encode())
        reference = self.store.put(weights, f"merged/{number}", provenance={})
        evaluation = self.evaluate(reference.digest, right, holdout, dtype, key=f"evaluations/{holdout[:12]}/{number}")
        (self.folder / f"run{number}.yaml").write_text(
            yaml.safe_dump({"contract": {}, "store": {"uri": self.store.uri}, "merge": {}})
        )
        tags = {
            "weights.manifest_sha256": reference.digest,
            "weights.reference": str(reference),
            "evaluation.reference": str(evaluation),
            "verdict": verdict,
        }
        entry = {"source": reference.uri, "run_id": f"run{number}", "tags": tags}
        self.mlflow.change("versions", number, value=entry)

    def evaluate(self, digest, right, holdout, dtype, *, key):
        folder = self.folder / key.replace("/", "-")
        folder.mkdir()
        parquet.write_table(pa.Table.from_pylist(samples(right)), folder / "samples.parquet")
        (folder / "metrics.json").write_text("{}")
        settings = {
            "dtype": dtype,
            "engine": "transformers",
            "contract_hash": CONTRACT.hash,
            "holdout_fingerprint": holdout,
            "model_digest": digest,
            "sampling": {"greedy": {"max_new_tokens": 32}},
        }
        (folder / "settings.json").write_text(json.dumps(settings))
        return self.store.put(folder, key, provenance={"kind": "evaluation", "model": digest})

    @property
    def desk(self):
        def on_step(name, text):
            self.steps.append(name)
            self.on_step(name)

        return open_desk(self.mlflow, "sums", home=self.folder, on_step=on_step)

    def promote(self, number, **options):
        version = read_version(self.mlflow, "sums", number)
        return promote(self.desk, Request(version, ServingConfig(), "ada", **options))

    def rollback(self, **options):
        return rollback(self.desk, serving=None, by="ada", reason="", max_flips=0.1, dry_run=False, **options)

    @property
    def champion(self):
        return champion(self.mlflow, "sums")

    @property
    def log(self):
        return [(entry.action, entry.version, entry.previous) for entry in self.desk.log.entries()]

    def is_quiet(self):
        """No journal is left, and alias and target agree."""
        return self.desk.log.journal() is None and self.target.deployed("sums") == self.champion


@functools.cache
def samples(right):
    rows = []
    for index in range(ROWS):
        good = index < right
        text = CONTRACT.write("thinking", str(index)) if good else "no idea"
        rows.append(
            {
                "id": f"row{index}",
                "question": f"What is {index}?",
                "prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": f"What is {index}?"}],
                "completion": text,
                "gold": str(index),
                "strict": good,
                "correct_strict": good,
                "correct_lenient": good,
                "decoding": "greedy",
                "set": "holdout",
            }
        )
    return rows


class Endpoint(BaseHTTPRequestHandler):
    """Answers as the deployed version does, or as if it answered `right` rows right."""

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert body["temperature"] == 0
        assert body["max_tokens"] == 32
        question = body["messages"][-1]["content"]
        number = int(question.removeprefix("What is ").removesuffix("?"))
        right = self.server.rights[self.server.deployed.read_text()] if self.server.right is None else self.server.right
        text = samples(right)[number]["completion"]
        self.server.asked.append(len(body["messages"]))
        answer = json.dumps({"choices": [{"message": {"content": text}, "finish_reason": "stop"}]}).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def endpoint():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
    server.right, server.rights, server.asked = None, {}, []
    Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()


@pytest.fixture
def world(tmp_path, endpoint, monkeypatch):
    made = World(tmp_path, f"http://127.0.0.1:{endpoint.server_port}")
    made.rights = endpoint.rights
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

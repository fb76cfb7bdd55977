"""What a promotion touches, for tests: versions with evaluations, MLflow's few calls, a target, an endpoint.

Imported by tests/unit/pipeline/test_promotion.py (files stand in for MLflow and target, so that they survive a kill)
and by tests/integration/pipeline (a real MLflow server and a real S3 store).
"""

import functools
import json
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as parquet
import yaml
from answering import answering

from components.contract import build_contract
from components.contract.config import ContractConfig
from components.errors import PipelineError
from components.storage.store import open_store
from pipeline.promoting.promotion import Request, open_desk, promote, rollback
from pipeline.promoting.registered import champion, read_version
from pipeline.promoting.targets.config import ServingConfig

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

    def add_version(self, number, source, tags, config):
        """Register a version of `sums`; no call of MLflow's client."""
        (self.path.parent / f"run{number}.yaml").write_text(config)
        entry = {"source": source, "run_id": f"run{number}", "tags": tags}
        self.change("versions", number, value=entry)

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

    def __init__(self, folder, url, *, store=None, mlflow=None):
        self.folder = folder
        self.store = store or open_store(str(folder / "store"))
        self.mlflow = mlflow or FileMlflow(folder / "mlflow.json")
        self.rights = {}
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
        config = {"contract": {}, "store": self.store.config.model_dump(mode="json"), "merge": {}}
        tags = {
            "weights.manifest_sha256": reference.digest,
            "weights.reference": str(reference),
            "evaluation.reference": str(evaluation),
            "verdict": verdict,
        }
        self.mlflow.add_version(number, reference.uri, tags, yaml.safe_dump(config))

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


@contextmanager
def served_endpoint():
    """An endpoint on a free port; `rights` and `deployed` are the world's to set."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
    server.right, server.asked = None, []
    with answering(server):
        yield server

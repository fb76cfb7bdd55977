"""What a cluster run starts with, on a real S3 store: local inputs go there, the first step and others find them.

There is no cluster, so that GPUs are not looked for, and the first step's function is called as its component calls it.
"""

import json
import socket
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from answering import answering
from servers import SeaweedServer

from components.errors import BadInputError
from pipeline.arguments import pipeline_arguments
from pipeline.cluster.cluster_config import config_for_cluster
from pipeline.cluster.cluster_graph import pipeline_parameters
from pipeline.config import load_config

pytestmark = pytest.mark.slow

QUICKSTART = Path(__file__).parents[3] / "configs" / "quickstart.yaml"


@pytest.fixture
def store(tmp_path, monkeypatch):
    (tmp_path / "seaweed").mkdir()
    server = SeaweedServer(tmp_path / "seaweed")
    server.start()
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("GRPO_WORK", str(tmp_path / "work"))
    monkeypatch.setenv("GRPO_CACHE", str(tmp_path / "cache"))
    yield server
    server.stop()


@pytest.fixture
def mlflow():
    """Answers the one search the first step makes."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *arguments):
            pass

    server = ThreadingHTTPServer(("", 0), Handler)
    with answering(server):
        # A name, since an address of this machine is refused for pods.
        yield f"http://{socket.gethostname()}:{server.server_port}"


@pytest.fixture
def config(store, mlflow, tmp_path):
    (tmp_path / "mine.py").write_text("def short(completions, **kwargs):\n    return [1.0 for _ in completions]\n")
    return load_config(
        QUICKSTART,
        [
            "store.uri=s3://artifacts/grpo",
            f"tracking.uri={mlflow}",
            f"rewards.mine={{use: '{tmp_path}/mine.py:short', aspect: length}}",
            "resources.train_grpo.gpus=0",
            "resources.evaluate_holdout.gpus=0",
        ],
    )


def test_the_first_step_finds_what_was_stored_and_hands_on_what_steps_read(config, store, tmp_path, monkeypatch):
    ready = config_for_cluster(config)
    assert config_for_cluster(config) == ready, "a second time nothing changes"
    assert str(tmp_path) not in ready.to_json()
    sections = run_first_step(ready, tmp_path)
    assert sections == pipeline_arguments(ready, model_inputs="", data_inputs="")

    from components.import_model.component import import_model
    from components.prepare_dataset.component import prepare_dataset

    given = {"store": sections["store"], "inputs": "", "code": "0" * 32}
    base = import_model.python_func(model=sections["model"], **given)
    report = type("Report", (), {"path": str(tmp_path / "report.md")})
    prepared = prepare_dataset.python_func(
        data=sections["data"], contract=sections["contract"], base=base, report=report, **given
    )
    assert prepared.dataset.startswith("s3://artifacts/grpo/datasets/")


def test_the_first_step_names_everything_that_is_missing(config, store, tmp_path):
    ready = config_for_cluster(config)
    client = store.client()
    for key in (ready.model.source, ready.rewards.rewards()["mine"].stored.reference.partition("@")[0]):
        prefix = key.removeprefix("s3://artifacts/")
        for found in client.list_objects_v2(Bucket="artifacts", Prefix=prefix)["Contents"]:
            client.delete_object(Bucket="artifacts", Key=found["Key"])
    with pytest.raises(BadInputError) as failed:
        run_first_step(ready, tmp_path)
    assert "2 of " in str(failed.value)
    assert "model.source: " in str(failed.value)
    assert "rewards: " in str(failed.value)


def run_first_step(config, folder):
    """The component's function, with the config as KFP's API carries it."""
    from pipeline.cluster.first_step import read_and_check

    given = json.loads(json.dumps(pipeline_parameters(config)["config"]))
    return read_and_check(given, config.resources.to_json(), str(folder / "page.md"))

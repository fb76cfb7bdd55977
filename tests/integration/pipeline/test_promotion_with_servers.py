"""Promotion with a real MLflow server and weights, lock, journal and log in a real S3 store."""

import pytest
from promotion_world import World, served_endpoint
from servers import SeaweedServer, mlflow_server

from components.errors import GateFailedError, PipelineError
from components.storage.config import StoreConfig
from components.storage.lease import hold
from components.storage.manifest import DamagedArtifactError
from components.storage.store import open_store
from components.tracking.config import TrackingConfig
from pipeline.promoting import promotion
from pipeline.promoting.promotion import Request, promote, settle
from pipeline.promoting.registered import read_version
from pipeline.promoting.targets.config import ServingConfig
from pipeline.tracking import open_tracking

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def tracking_uri(tmp_path_factory):
    with mlflow_server(tmp_path_factory.mktemp("mlflow")) as uri:
        yield uri


@pytest.fixture
def s3(tmp_path, monkeypatch):
    folder = tmp_path / "seaweed"
    folder.mkdir()
    server = SeaweedServer(folder)
    server.start()
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("GRPO_CACHE", str(tmp_path / "cache"))
    yield server
    server.stop()


class ServerMlflow:
    """A real client, with the one thing a world needs besides."""

    def __init__(self, uri):
        self.client = open_tracking(TrackingConfig(uri=uri))
        self.client.create_registered_model("sums")

    def __getattr__(self, name):
        return getattr(self.client, name)

    def add_version(self, number, source, tags, config):
        experiment = self.client.get_experiment_by_name("e") or None
        place = experiment.experiment_id if experiment else self.client.create_experiment("e")
        run = self.client.create_run(place).info.run_id
        self.client.log_text(run, config, "config.yaml")
        made = self.client.create_model_version("sums", source, run_id=run, tags=tags)
        assert str(made.version) == number


def test_promoted_refused_rolled_back_and_repaired_with_servers(tracking_uri, s3, tmp_path, monkeypatch):
    store = open_store(StoreConfig(uri="s3://artifacts/runs"))
    with served_endpoint() as endpoint:
        mlflow = ServerMlflow(tracking_uri)
        world = World(tmp_path, f"http://127.0.0.1:{endpoint.server_port}", store=store, mlflow=mlflow)
        endpoint.rights, endpoint.deployed = world.rights, world.target.path
        monkeypatch.setattr(promotion, "open_target", lambda config, home: world.target)
        for number, right in (("1", 200), ("2", 150), ("3", 202)):
            world.register(number, right)

        assert world.promote("1").changed
        assert not world.promote("1").changed
        with pytest.raises(GateFailedError, match="sums/2"):
            world.promote("2")
        assert world.promote("2", force="to see it").changed
        assert world.rollback().changed
        assert world.champion == "1"

        # One byte altered in the bucket.
        key = read_version(mlflow, "sums", "3").weights.uri.removeprefix("s3://artifacts/") + "/model.safetensors"
        content = s3.client().get_object(Bucket="artifacts", Key=key)["Body"].read()
        s3.client().put_object(Bucket="artifacts", Key=key, Body=bytes([content[0] ^ 1]) + content[1:])
        with pytest.raises(DamagedArtifactError, match=r"model\.safetensors"):
            world.promote("3")
        s3.client().put_object(Bucket="artifacts", Key=key, Body=content)

        # One at a time.
        with (
            hold(store, world.desk.log.lease, what="a promotion by grace"),
            pytest.raises(PipelineError, match="by grace"),
        ):
            world.promote("3")

        # Stopped dead after the deployment: the next command puts everything back.
        class Killed(BaseException):
            pass

        def die(name):
            if name == "wait":
                world.on_step = lambda name: None
                monkeypatch.setattr(promotion, "_undo_after", lambda *arguments: None)
                raise Killed

        world.on_step = die
        version = read_version(mlflow, "sums", "3")
        with pytest.raises(Killed):
            promote(world.desk, Request(version, ServingConfig(), "ada"))
        assert world.champion == "3"
        assert "undone" in settle(world.desk)
        assert world.champion == "1"
        assert world.is_quiet()
        assert [entry[:2] for entry in world.log] == [
            ("promoted", "1"),
            ("promoted", "2"),
            ("rolled back", "1"),
            ("undone", "3"),
        ]
        assert mlflow.get_model_version("sums", "2").tags["promotion.forced"] == "to see it"

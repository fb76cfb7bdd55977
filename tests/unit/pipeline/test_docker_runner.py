"""What a run in containers refuses, and how its containers are run; no daemon is needed."""

import os

import pytest

from components.errors import BadInputError, ExitCode
from components.steps import EVENTS_VARIABLE
from pipeline import docker_runner
from pipeline.config import build_config
from pipeline.docker_runner import check_docker, container_arguments, container_environment, run_container


@pytest.fixture
def config(tmp_path):
    def build(store="s3://artifacts/grpo", tracking="http://127.0.0.1:5000", **sections):
        return build_config(
            {
                "model": {"source": "org/model"},
                "data": {"train": "s3://artifacts/rows.jsonl"},
                "store": {"uri": store},
                "tracking": {"uri": tracking},
                **sections,
            },
            origin="test",
            folder=tmp_path,
        )

    return build


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "events.jsonl").touch()
    return tmp_path


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    for name in list(os.environ):
        if name.startswith(("AWS_", "MLFLOW_")) or name in docker_runner.CA_VARIABLES:
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")


@pytest.fixture
def credentials(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "an-id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-secret")


def test_a_local_store_is_refused(config):
    with pytest.raises(BadInputError, match=r"store\.uri: .* is a folder of this machine.*make stack"):
        check_docker(config(store="store"))


def test_a_local_mlflow_database_is_refused(config):
    with pytest.raises(BadInputError, match=r"tracking\.uri: .* is a file of this machine.*make stack"):
        check_docker(config(tracking="sqlite:///mlflow.db"))


def test_a_store_without_credentials_is_refused(config):
    with pytest.raises(BadInputError, match="AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"):
        check_docker(config())


def test_a_daemon_that_does_not_answer_is_one_sentence(config, credentials, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent/docker.sock")
    with pytest.raises(BadInputError, match="the docker daemon does not answer"):
        check_docker(config())


def test_steps_get_endpoints_and_credentials_and_nothing_else_of_this_process(config, credentials, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "token")
    monkeypatch.setenv("SOME_OTHER_SECRET", "x")
    monkeypatch.setenv("AWS_PROFILE_NOT", "kept")
    found = container_environment(config(store="s3://artifacts/grpo"))
    assert (found["AWS_ACCESS_KEY_ID"], found["AWS_SECRET_ACCESS_KEY"]) == ("an-id", "a-secret")
    assert found["MLFLOW_TRACKING_TOKEN"] == "token"
    assert not {"SOME_OTHER_SECRET", "PATH", "HOME", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"} & set(found)


def test_the_endpoint_of_the_config_wins_over_the_environment(config, credentials, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://elsewhere:1")
    section = {"uri": "s3://artifacts/grpo", "endpoint_url": "http://here:2"}
    built = config().model_copy(update={"store": config().store.model_validate(section)})
    assert container_environment(built)["AWS_ENDPOINT_URL"] == "http://here:2"


def test_containers_are_hardened_and_see_of_this_machine_only_the_events_file_and_certificates(folder, tmp_path):
    bundle = tmp_path / "ca.pem"
    bundle.touch()
    arguments = container_arguments(folder, {"AWS_CA_BUNDLE": str(bundle), "SSL_CERT_FILE": "/nonexistent"})
    assert arguments["read_only"] is True
    assert arguments["cap_drop"] == ["ALL"]
    assert arguments["security_opt"] == ["no-new-privileges"]
    assert not arguments["user"].startswith("0:")
    assert arguments["environment"][EVENTS_VARIABLE] == str(folder / "events.jsonl")
    binds = {mount["Source"]: mount["ReadOnly"] for mount in arguments["mounts"] if mount["Type"] == "bind"}
    assert binds == {str(folder / "events.jsonl"): False, str(bundle): True}


class Container:
    """A container of the docker SDK that ends as told."""

    def __init__(self, status=0, gone=False):
        self.status, self.gone, self.removed = status, gone, False

    def start(self):
        pass

    def logs(self, **_):
        return [b"line\n"]

    def wait(self):
        if self.gone:
            import docker

            raise docker.errors.NotFound("gone", explanation="no such container")
        return {"StatusCode": self.status}

    def remove(self, **_):
        self.removed = True


class Client:
    """A client that has one container."""

    def __init__(self, container):
        self.containers, self._container = self, container

    def create(self, **_):
        return self._container


def test_a_containers_status_is_handed_on_and_it_is_removed(capsys):
    container = Container(status=3)
    assert run_container(Client(container), "image", ["true"], {}) == 3
    assert container.removed
    assert capsys.readouterr().out == "line\n"


def test_a_container_that_somebody_else_removed_did_not_succeed(capsys):
    assert run_container(Client(Container(gone=True)), "image", ["true"], {}) == 1


def test_no_container_starts_in_a_run_that_was_told_to_stop(monkeypatch):
    monkeypatch.setattr(docker_runner, "_stopping", ["run"])
    assert run_container(Client(Container()), "image", ["true"], {}) == ExitCode.RESUMABLE

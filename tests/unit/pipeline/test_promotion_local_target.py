"""The local target: one server process a model, found again, replaced, stopped; a stand-in for the server."""

import os
import signal
import socket
import sys
import time

import pytest
from servers import free_port

from components.errors import BadInputError, PipelineError
from components.storage.config import StoreConfig
from components.storage.store import open_store
from pipeline.promoting.endpoint import healthy
from pipeline.promoting.serving import ServerCommand, server_command, verify_folder
from pipeline.promoting.targets import local
from pipeline.promoting.targets.config import ServingConfig
from pipeline.promoting.targets.local import LocalTarget, read_state
from pipeline.promoting.targets.target import Served

SERVER = """
import http.server, sys
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b"ok")
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Answer).serve_forever()
"""
BROKEN = "import sys; print('no such weights'); sys.exit(1)"


@pytest.fixture
def port():
    return free_port()


@pytest.fixture
def target(tmp_path, port, monkeypatch):
    def stand_in(weights, folder, *, model, host, port, engine, dtype):
        folder.mkdir(parents=True, exist_ok=True)
        code = BROKEN if (weights / "broken").exists() else SERVER
        return ServerCommand("transformers", [sys.executable, "-c", code, str(port)], folder, {})

    monkeypatch.setattr(local, "server_command", stand_in)
    made = LocalTarget(ServingConfig(port=port, ready_timeout_s=20), tmp_path)
    yield made
    made.remove("sums")


@pytest.fixture
def served(tmp_path):
    def make(version, *, broken=False):
        folder = tmp_path / f"weights-{version}"
        folder.mkdir()
        (folder / ("broken" if broken else "config.json")).write_text(version)
        reference = open_store(str(tmp_path / "store")).put(folder, f"merged/{version}", provenance={})
        return Served("sums", version, reference, "float32", StoreConfig(uri=str(tmp_path / "store")))

    return make


def test_a_version_is_served_found_again_and_replaced(target, served, tmp_path, port):
    one, two = served("1"), served("2")
    assert target.deployed("sums") is None
    target.deploy(one)
    url = target.wait(one)
    assert url == f"http://127.0.0.1:{port}"
    again = LocalTarget(ServingConfig(port=port), tmp_path)
    assert again.serves(one)
    assert not again.serves(two)
    first = int((tmp_path / "serving" / "sums" / "pid").read_text())
    again.deploy(two)
    again.wait(two)
    assert again.serves(two)
    assert int((tmp_path / "serving" / "sums" / "pid").read_text()) != first
    assert read_state(tmp_path, "sums")["url"] == url
    again.remove("sums")
    again.remove("sums")
    assert not healthy(url)
    assert again.deployed("sums") is None


def test_a_server_that_died_is_not_taken_for_served(target, served, tmp_path):
    one = served("1")
    target.deploy(one)
    target.wait(one)
    os.killpg(int((tmp_path / "serving" / "sums" / "pid").read_text()), signal.SIGKILL)
    time.sleep(0.2)
    assert target.deployed("sums") == "1"
    assert not target.serves(one)
    target.deploy(one)
    assert target.wait(one)


def test_a_stranger_with_the_servers_number_is_left_alone(target, served, tmp_path):
    folder = tmp_path / "serving" / "sums"
    folder.mkdir(parents=True)
    (folder / "pid").write_text(str(os.getpid()))
    target.remove("sums")
    assert not folder.exists()


def test_a_server_that_does_not_start_says_why(target, served):
    broken = served("1", broken=True)
    target.deploy(broken)
    with pytest.raises(PipelineError, match="no such weights"):
        target.wait(broken)


def test_a_taken_port_is_refused(target, served, port):
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
        other.listen()
        with pytest.raises(BadInputError, match=f"port {port} of 127.0.0.1"):
            target.deploy(served("1"))


def test_altered_weights_are_not_served(target, served, tmp_path):
    one = served("1")
    (tmp_path / "store" / "merged" / "1" / "config.json").write_text("x")
    with pytest.raises(PipelineError, match=r"config\.json"):
        target.deploy(one)
    with pytest.raises(PipelineError, match=r"config\.json"):
        verify_folder(tmp_path / "store" / "merged" / "1")


@pytest.mark.parametrize("system_prompt", [True, False])
def test_the_server_gets_the_registered_name_and_the_switch(tmp_path, system_prompt):
    command = server_command(
        tmp_path / "weights",
        tmp_path / "server",
        model="sums",
        host="127.0.0.1",
        port=8000,
        engine="transformers",
        dtype="float32",
        system_prompt=system_prompt,
    )
    assert (command.folder / "sums").readlink() == tmp_path / "weights"
    assert "sums" in command.arguments
    assert ('{"default_system": false}' in command.arguments) is not system_prompt
    assert command.environment["HF_HUB_OFFLINE"] == "1"

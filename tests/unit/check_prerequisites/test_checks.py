"""What a run needs of its cluster: each failure is told, together with the others, and names what to mend."""

import json
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from answering import answering

from components.check_prerequisites.check import (
    Finding,
    Place,
    State,
    check_all,
    check_mlflow,
    check_place,
    check_rewards,
    check_store,
    fail_on,
    report,
)
from components.check_prerequisites.nodes import MEMORY_LABEL, Node, Wanted, check_nodes, quantity
from components.contract.config import ContractConfig
from components.errors import BadInputError
from components.rewards.config import RewardsConfig
from components.storage.config import StoreConfig
from components.storage.store import open_store

GPU = "nvidia.com/gpu"
TAINT = (GPU, "present", "NoSchedule")


def node(name="gpu-1", gpus=8, labels=None, taints=(), ready=True, **allocatable):
    return Node(
        name, labels or {}, tuple(taints), {GPU: str(gpus), "cpu": "64", "memory": "512Gi", **allocatable}, ready
    )


def wanted(**changes):
    return Wanted(
        **{"step": "train_grpo", "pods": 1, "gpus": 4, "gpu_type": GPU, "cpu": "16", "memory": "64Gi"} | changes
    )


@pytest.mark.parametrize(
    ("text", "number"), [("2", 2), ("500m", 0.5), ("16Gi", 2**34), ("1G", 10**9), ("128974848", 128974848), ("?", 0)]
)
def test_quantities_are_read_as_kubernetes_writes_them(text, number):
    assert float(quantity(text)) == number


def test_a_node_that_can_take_the_pod_passes():
    assert check_nodes([node(gpus=0), node()], wanted()).state is State.PASSED


@pytest.mark.parametrize(
    ("nodes", "asked", "why"),
    [
        ([], {}, "there is no other node"),
        ([node(gpus=2)], {}, f"2 x {GPU}"),
        ([node(ready=False)], {}, "not ready"),
        ([node(taints=[TAINT])], {}, "taint nvidia.com/gpu=present:NoSchedule is not tolerated"),
        ([node()], {"node_selector": {"pool": "a100"}}, "label pool is missing"),
        ([node(cpu="8")], {}, "cpu 8"),
        ([node(memory="32Gi")], {}, "memory 32Gi"),
        ([node()], {"pods": 2}, "2 node(s)"),
    ],
)
def test_a_cluster_that_can_never_take_the_pod_fails_and_says_why(nodes, asked, why):
    found = check_nodes(nodes, wanted(**asked))
    assert found.state is State.FAILED
    assert why in found.message
    assert "resources.train_grpo" in found.message


@pytest.mark.parametrize(
    ("toleration", "state"),
    [
        ({"key": GPU, "operator": "Exists"}, State.PASSED),
        ({"operator": "Exists"}, State.PASSED),
        ({"key": GPU, "operator": "Equal", "value": "present", "effect": "NoSchedule"}, State.PASSED),
        ({"key": GPU, "operator": "Equal", "value": "absent"}, State.FAILED),
        ({"key": GPU, "operator": "Exists", "effect": "NoExecute"}, State.FAILED),
        ({"key": "other", "operator": "Exists"}, State.FAILED),
    ],
)
def test_taints_are_borne_by_the_schedulers_rules(toleration, state):
    assert check_nodes([node(taints=[TAINT])], wanted(tolerations=[toleration])).state is state


@pytest.mark.parametrize(("label", "state"), [("81559", State.PASSED), ("24576", State.FAILED), (None, State.UNKNOWN)])
def test_gpu_memory_is_held_against_the_estimate(label, state):
    labels = {MEMORY_LABEL: label} if label else {}
    found = check_nodes([node(labels=labels)], wanted(gpu_memory_gib=40.0))
    assert found.state is state
    assert "40.0 GiB" in found.message


def test_nodes_that_may_come_are_no_failure():
    assert check_nodes([], wanted(autoscaled=True)).state is State.UNKNOWN


def test_every_failure_is_told_at_once(tmp_path):
    store = open_store(str(tmp_path / "store"))
    missing = Place("data.train", "artifact", f"file://{tmp_path}/none@sha256:{'0' * 64}")
    findings = check_all(
        [
            ("store", lambda: check_store(store)),
            ("MLflow", lambda: check_mlflow("http://127.0.0.1:9")),
            ("data.train", lambda: check_place(missing, StoreConfig())),
        ]
    )
    assert [finding.state for finding in findings] == [State.PASSED, State.FAILED, State.FAILED]
    with pytest.raises(BadInputError) as failed:
        fail_on(findings)
    assert "2 of 3 prerequisites failed" in str(failed.value)
    assert "MLflow: tracking.uri" in str(failed.value)
    assert "data.train: " in str(failed.value)
    assert report(findings).count("| failed |") == 2


def test_what_could_not_be_checked_fails_nothing():
    fail_on([Finding("GPU for train_grpo", State.UNKNOWN, "may not list nodes")])


@pytest.fixture
def mlflow():
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            allowed = self.headers.get("Authorization") == "Basic dXNlcjpwYXNz"
            data = json.dumps({"experiments": []}).encode()
            self.send_response(200 if allowed else 401)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *arguments):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    with answering(server):
        yield f"http://127.0.0.1:{server.server_port}"


def test_mlflow_is_asked_with_the_credentials_the_steps_have(mlflow, monkeypatch):
    for name in ("TOKEN", "USERNAME", "PASSWORD"):
        monkeypatch.delenv(f"MLFLOW_TRACKING_{name}", raising=False)
    refused = check_mlflow(mlflow)
    assert refused.state is State.FAILED
    assert "resources.secrets" in refused.message
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "user")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "pass")
    assert check_mlflow(mlflow).state is State.PASSED


def test_a_reward_file_that_cannot_be_imported_fails_with_its_own_words(tmp_path):
    (tmp_path / "mine.py").write_text("import no_such_package\n")
    rewards = RewardsConfig.model_validate({"correctness": 2.0, "mine": {"use": f"{tmp_path}/mine.py:f"}})
    found = check_all([("rewards", lambda: check_rewards(rewards, ContractConfig()))])[0]
    assert found.state is State.FAILED
    assert "no_such_package" in found.message


def test_rewards_that_load_pass():
    assert check_rewards(RewardsConfig(), ContractConfig()).state is State.PASSED

"""The manifests in k8s/: each object by its schema, and the rules they are all held to.

Objects of Kubernetes itself go through kubernetes-validate --strict; those of others (Kueue, KServe, Trainer) through
schemas/, written for the fields we use. Whether a cluster does with them what they say is not shown here.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml

from components.storage.config import StoreConfig
from components.storage.references import Reference
from pipeline.pods import QUEUE_LABEL, STEP_LABEL
from pipeline.promoting.targets.config import ServingConfig
from pipeline.promoting.targets.gitops import GitopsTarget
from pipeline.promoting.targets.target import Served

ROOT = Path(__file__).parents[3]
K8S = ROOT / "k8s"
BUILDS = ("overlays/local", "overlays/gpu", "overlays/kserve", "served/deployment", "served/kserve")

SCHEMAS = Path(__file__).parent / "schemas"
CUSTOM = ("kueue.x-k8s.io/", "serving.kserve.io/", "trainer.kubeflow.org/")
EXAMPLE = Served(
    "sums",
    "1",
    Reference("s3://artifacts/grpo/merged/0123456789abcdef", "0" * 64),
    "bfloat16",
    StoreConfig(uri="s3://artifacts/grpo", endpoint_url="http://grpo-seaweedfs.grpo.svc:8333"),
)


def tool(name: str) -> str:
    """A program of the environment the tests run in."""
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed (extra dev)")
    return found


def build(name: str) -> str:
    command = [tool("kubectl"), "kustomize", str(K8S / name)]
    # No proxy, no home: what it needs has to lie in k8s/.
    done = subprocess.run(
        command, capture_output=True, text=True, env={"HOME": "/nonexistent", "PATH": "/usr/bin:/bin"}
    )
    assert done.returncode == 0, done.stderr
    assert "http" not in done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built() -> dict[str, str]:
    return {name: build(name) for name in BUILDS}


@pytest.fixture(scope="module")
def objects(built) -> dict[str, list[dict]]:
    return {name: [document for document in yaml.safe_load_all(text) if document] for name, text in built.items()}


def pod_of(entry):
    """The pod template of an object, None when it has none."""
    spec = entry.get("spec", {})
    if entry["kind"] in ("Deployment", "StatefulSet", "Job"):
        return spec["template"]["spec"]
    if entry["kind"] == "InferenceService":
        return spec["predictor"]
    if entry["kind"] == "TrainingRuntime":
        return spec["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    return None


def pods(objects):
    for name, entries in objects.items():
        for entry in entries:
            pod = pod_of(entry)
            if pod is not None:
                yield f"{name}: {entry['kind']} {entry['metadata']['name']}", pod


@pytest.mark.parametrize("name", BUILDS)
def test_objects_of_kubernetes_are_valid_without_a_warning(name, objects, tmp_path):
    own = [entry for entry in objects[name] if not entry["apiVersion"].startswith(CUSTOM)]
    (tmp_path / "all.yaml").write_text(yaml.safe_dump_all(own))
    done = subprocess.run(
        [tool("kubernetes-validate"), "--strict", str(tmp_path / "all.yaml")], capture_output=True, text=True
    )
    told = done.stdout + done.stderr
    assert done.returncode == 0, told
    assert "WARN" not in told


@pytest.mark.parametrize("name", BUILDS)
def test_objects_of_others_are_valid_by_their_schemas(name, objects):
    for entry in objects[name]:
        if entry["apiVersion"].startswith(CUSTOM):
            group, version = entry["apiVersion"].split("/")
            schema = json.loads((SCHEMAS / f"{group}-{version}-{entry['kind'].lower()}.json").read_text())
            jsonschema.Draft202012Validator.check_schema(schema)
            jsonschema.validate(entry, schema)


@pytest.mark.parametrize("name", BUILDS)
def test_pods_inside_objects_of_others_are_valid_pods(name, objects, tmp_path):
    inner = [pod_of(entry) for entry in objects[name] if entry["apiVersion"].startswith(CUSTOM)]
    found = [
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"pod-{number}"}, "spec": _pod_spec(pod)}
        for number, pod in enumerate(pod for pod in inner if pod)
    ]
    assert bool(found) == (name in ("overlays/gpu", "overlays/kserve", "served/kserve"))
    (tmp_path / "pods.yaml").write_text(yaml.safe_dump_all(found))
    if found:
        done = subprocess.run(
            [tool("kubernetes-validate"), "--strict", str(tmp_path / "pods.yaml")], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr


def _pod_spec(pod):
    """Without what KServe's predictor has beside a pod's fields."""
    return {key: value for key, value in pod.items() if key not in ("minReplicas", "maxReplicas", "annotations")}


def test_a_misspelt_field_is_refused_by_the_schemas(objects):
    for path in sorted(SCHEMAS.glob("*.json")):
        schema = json.loads(path.read_text())
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({"apiVersion": "x/v1", "kind": "X", "metadata": {"name": "x"}, "spce": {}}, schema)


def test_no_container_is_root_or_may_become_more(objects):
    for where, pod in pods(objects):
        outer = pod.get("securityContext", {})
        assert outer["seccompProfile"]["type"] == "RuntimeDefault", where
        for container in [*pod.get("initContainers", []), *pod["containers"]]:
            inner = container["securityContext"]
            assert inner["allowPrivilegeEscalation"] is False, where
            assert inner["capabilities"] == {"drop": ["ALL"]}, where
            assert {**outer, **inner}["runAsNonRoot"] is True, where
            assert {**outer, **inner}["runAsUser"] > 0, where
        assert not pod.get("hostNetwork")
        assert not [volume for volume in pod.get("volumes", []) if "hostPath" in volume]


def test_every_container_has_requests_limits_and_servers_have_probes(objects):
    for where, pod in pods(objects):
        if "TrainingRuntime" in where:
            continue  # the TrainJob brings them
        for container in [*pod.get("initContainers", []), *pod["containers"]]:
            resources = container["resources"]
            assert {"cpu", "memory"} <= set(resources["requests"]), where
            assert "memory" in resources["limits"], where
            if "ports" in container:
                assert {"readinessProbe", "livenessProbe", "startupProbe"} <= set(container), where


def test_images_say_their_version(built):
    for text in built.values():
        images = re.findall(r"^\s*-?\s*image: (\S+)$", text, re.MULTILINE)
        for image in images:
            assert re.search(r":[^/]+$|@sha256:[0-9a-f]{64}$", image), image
            assert not image.endswith(":latest"), image


def test_secrets_are_only_named(objects):
    for entries in objects.values():
        assert "Secret" not in {entry["kind"] for entry in entries}


@pytest.mark.parametrize("name", ["overlays/local", "overlays/gpu", "overlays/kserve"])
def test_the_namespace_is_restricted_and_denies_by_default(name, objects):
    by_kind = {}
    for entry in objects[name]:
        by_kind.setdefault(entry["kind"], []).append(entry)
    labels = by_kind["Namespace"][0]["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
    deny = next(entry for entry in by_kind["NetworkPolicy"] if entry["metadata"]["name"] == "default-deny")
    assert deny["spec"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    assert {"ResourceQuota", "LimitRange", "Role", "ServiceAccount"} <= set(by_kind)


def test_the_weight_sync_port_of_trl_is_open_between_training_and_its_server_only(objects):
    from components.train_grpo.trl_fields import load_fields

    port = load_fields()["vllm_group_port"].default
    policies = [entry for entry in objects["overlays/gpu"] if entry["kind"] == "NetworkPolicy"]
    open_in = {
        entry["metadata"]["name"]
        for entry in policies
        for rule in [*entry["spec"].get("ingress", []), *entry["spec"].get("egress", [])]
        if port in [given.get("port") for given in rule.get("ports", [])]
    }
    assert open_in == {"training", "generation"}


def test_nothing_may_be_done_to_everything(objects):
    for entries in objects.values():
        for entry in entries:
            if entry["kind"] in ("Role", "ClusterRole"):
                for rule in entry["rules"]:
                    assert "*" not in [*rule["verbs"], *rule["resources"], *rule["apiGroups"]]
                    if "secrets" in rule["resources"]:
                        assert rule["resourceNames"] == ["grpo-store"]


def test_the_storage_class_is_left_to_the_cluster(built):
    for text in built.values():
        assert "storageClassName" not in text


def test_labels_are_those_the_compiled_pipeline_sets(built):
    assert f"key: {STEP_LABEL}" in built["overlays/local"]
    assert QUEUE_LABEL.split("/")[0] in built["overlays/gpu"]


@pytest.mark.parametrize("kind", ["deployment", "kserve"])
def test_the_example_served_is_what_promote_writes(kind, tmp_path):
    config = ServingConfig.model_validate(yaml.safe_load((K8S / "served" / kind / "serving.yaml").read_text()))
    target = GitopsTarget(config.model_copy(update={"folder": str(tmp_path)}))
    target.deploy(EXAMPLE)
    written = (tmp_path / "grpo-sums.yaml").read_text()
    kept = K8S / "served" / kind / "grpo-sums.yaml"
    if _updating():
        kept.write_text(written)
    assert written == kept.read_text()


@pytest.mark.parametrize("name", ["served/deployment", "served/kserve"])
def test_weights_are_verified_by_our_storage_code_before_a_server_starts(name, objects):
    pod = next(pod for pod in map(pod_of, objects[name]) if pod)
    fetch = pod["initContainers"][0]
    assert fetch["command"][:4] == ["python", "-m", "components.storage", "fetch"]
    assert fetch["args"][0] == str(EXAMPLE.weights)


def test_yamllint_finds_nothing():
    done = subprocess.run(
        [tool("yamllint"), "--strict", "-c", str(K8S / ".yamllint.yaml"), str(K8S)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout


def test_every_command_of_the_readme_names_files_that_are_there():
    text = (K8S / "README.md").read_text()
    named = re.findall(r"\bk8s/[\w./-]+", text)
    assert named
    for path in named:
        assert (ROOT / path.rstrip(".")).exists(), path


def _updating():
    return os.environ.get("UPDATE_GOLDEN")


@pytest.mark.parametrize("name", ["overlays/local", "overlays/gpu"])
def test_who_may_send_is_who_may_be_reached(name, objects):
    """Each opening of one side has its other side: a policy in one direction alone opens nothing."""
    policies = [entry for entry in objects[name] if entry["kind"] == "NetworkPolicy"]
    step = {"grpo-pipeline/step": "train_grpo", "pipeline/runid": "x"}
    mlflow = {"app.kubernetes.io/name": "grpo-mlflow"}
    pairs = [(step, mlflow, 5000), (mlflow, {"app.kubernetes.io/name": "grpo-postgres"}, 5432)]
    if name == "overlays/local":
        seaweed = {"app.kubernetes.io/name": "grpo-seaweedfs"}
        server = {"app.kubernetes.io/managed-by": "grpo"}
        pairs += [(sender, seaweed, 8333) for sender in (step, {"pipeline/runid": "x"}, mlflow, server)]
    for sender, receiver, port in pairs:
        assert _lets(policies, sender, receiver, port, "egress", "to"), (sender, receiver, port)
        assert _lets(policies, receiver, sender, port, "ingress", "from"), (sender, receiver, port)
    stranger = {"app.kubernetes.io/name": "stranger"}
    assert not _lets(policies, mlflow, stranger, 5000, "ingress", "from")


def _lets(policies, owner, other, port, side, key):
    for policy in policies:
        if not _selects(policy["spec"]["podSelector"], owner):
            continue
        for rule in policy["spec"].get(side, []):
            peers = [peer for peer in rule[key] if "podSelector" in peer]
            if port in [given["port"] for given in rule["ports"]] and any(
                _selects(peer["podSelector"], other) for peer in peers
            ):
                return True
    return False


def _selects(selector, labels):
    for key, value in selector.get("matchLabels", {}).items():
        if labels.get(key) != value:
            return False
    for wanted in selector.get("matchExpressions", []):
        have = labels.get(wanted["key"])
        if have is None or (wanted["operator"] == "In" and have not in wanted["values"]):
            return False
    return True

"""Where a version is served: manifests, server-side apply and rollout against a small API double, a gitops folder."""

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml
from answering import answering
from kubernetes import client
from pydantic import ValidationError

from components.errors import BadInputError, PipelineError
from components.storage.__main__ import main as storage_command
from components.storage.config import StoreConfig
from components.storage.references import Reference
from components.storage.store import open_store
from pipeline.promoting.targets.config import ServingConfig
from pipeline.promoting.targets.gitops import GitopsTarget
from pipeline.promoting.targets.kubernetes import KubernetesTarget
from pipeline.promoting.targets.manifests import render
from pipeline.promoting.targets.target import Served

DEPLOYMENT = "/apis/apps/v1/namespaces/models/deployments/grpo-sums"
SERVICE = "/api/v1/namespaces/models/services/grpo-sums"
INFERENCE = "/apis/serving.kserve.io/v1beta1/namespaces/models/inferenceservices/grpo-sums"


def served(version="1", uri="s3://bucket/store/merged/abc"):
    store = StoreConfig(uri="s3://bucket/store", endpoint_url="http://s3.storage:8333", region="eu-west-1")
    return Served("sums", version, Reference(uri, version * 64), "bfloat16", store)


def serving(kind="deployment", **options):
    return ServingConfig(
        target="kubernetes",
        kubernetes={"kind": kind, "namespace": "models", "secret": "s3", **options},
        ready_timeout_s=5,
    )


class Api(BaseHTTPRequestHandler):
    """PATCH (server-side apply), GET and DELETE of an object; a rollout takes two looks."""

    def do_PATCH(self):
        assert self.headers["Content-Type"] == "application/apply-patch+yaml"
        url = urlsplit(self.path)
        query = parse_qs(url.query)
        assert query["fieldManager"] == ["grpo"]
        body = yaml.safe_load(self.rfile.read(int(self.headers["Content-Length"])))
        if url.path not in self.server.known:
            return self.answer(404, {"message": "the server could not find the requested resource"})
        if "bad" in json.dumps(body):
            return self.answer(422, {"message": "spec is invalid"})
        before = self.server.objects.get(url.path)
        metadata = dict(body["metadata"])
        metadata["generation"] = before["metadata"]["generation"] if before else 1
        if before and before["spec"] != body["spec"]:
            metadata["generation"] += 1
        made = {**body, "metadata": metadata, "status": (before or {}).get("status", {})}
        self.server.calls.append(("PATCH", url.path, "dryRun" in query))
        if "dryRun" not in query:
            self.server.objects[url.path] = made
            self.server.looks[url.path] = 0
        return self.answer(200, made)

    def do_GET(self):
        self.server.calls.append(("GET", self.path, False))
        found = self.server.objects.get(self.path)
        if found is None:
            return self.answer(404, {"message": "not found"})
        self.server.looks[self.path] += 1
        if self.server.looks[self.path] > 2:
            found["status"] = self.server.status(found)
        return self.answer(200, found)

    def do_DELETE(self):
        found = self.server.objects.pop(self.path, None)
        return self.answer(200 if found else 404, {"message": "gone"})

    def answer(self, status, content):
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(content).encode())

    def log_message(self, *arguments):
        pass


def rolled_out(found):
    generation = found["metadata"]["generation"]
    if found["kind"] == "InferenceService":
        url = "http://sums.models.example.com"
        return {"observedGeneration": generation, "conditions": [{"type": "Ready", "status": "True"}], "url": url}
    return {"observedGeneration": generation, "replicas": 1, "updatedReplicas": 1, "availableReplicas": 1}


@pytest.fixture
def cluster():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Api)
    server.objects, server.looks, server.calls = {}, {}, []
    server.known = {DEPLOYMENT, SERVICE, INFERENCE}
    server.status = rolled_out
    with answering(server):
        yield server


@pytest.fixture
def open_cluster(cluster):
    configuration = client.Configuration(host=f"http://127.0.0.1:{cluster.server_port}")
    return lambda config: KubernetesTarget(config, client.ApiClient(configuration), poll_s=0.01)


def test_a_deployment_is_applied_and_its_rollout_waited_for(cluster, open_cluster):
    target = open_cluster(serving())
    assert target.deployed("sums") is None
    assert "+  replicas: 1" in target.changes(served())
    assert cluster.objects == {}, "a plan is a dry run"
    target.deploy(served())
    assert not target.serves(served())
    assert target.wait(served()) == "http://grpo-sums.models.svc:8000"
    assert target.serves(served())
    assert target.deployed("sums") == "1"
    assert target.changes(served()) == ""


def test_what_the_api_server_refuses_is_refused_before_anything_changes(cluster, open_cluster):
    cluster.known = {DEPLOYMENT}
    with pytest.raises(PipelineError, match="does not know v1 Service"):
        open_cluster(serving()).deploy(served())
    assert cluster.objects == {}
    cluster.known = {DEPLOYMENT, SERVICE}
    with pytest.raises(PipelineError, match="Kubernetes refused PATCH Deployment grpo-sums: spec is invalid"):
        open_cluster(serving(image="bad")).deploy(served())


def test_another_version_replaces_the_first_and_shows_as_a_diff(cluster, open_cluster):
    target = open_cluster(serving())
    target.deploy(served())
    target.wait(served())
    assert "+    grpo-pipeline/version: '2'" in target.changes(served("2"))
    target.deploy(served("2"))
    target.wait(served("2"))
    assert target.deployed("sums") == "2"
    assert not target.serves(served())
    target.remove("sums")
    target.remove("sums")
    assert cluster.objects == {}


def test_a_rollout_that_fails_or_hangs_is_an_error_with_what_to_look_at(cluster, open_cluster):
    reason = {"type": "Progressing", "reason": "ProgressDeadlineExceeded", "message": "no GPU is free"}
    cluster.status = lambda found: {"observedGeneration": 1, "conditions": [reason]}
    target = open_cluster(serving())
    target.deploy(served())
    with pytest.raises(PipelineError, match="no GPU is free; look at it: kubectl -n models describe Deployment/grpo-"):
        target.wait(served())
    cluster.status = lambda found: {}
    quick = open_cluster(serving().model_copy(update={"ready_timeout_s": 0.1}))
    with pytest.raises(PipelineError, match="in 0 s"):
        quick.wait(served())


def test_an_inference_service_is_applied_and_asked_at_its_own_url(cluster, open_cluster):
    target = open_cluster(serving("kserve"))
    target.deploy(served())
    assert target.wait(served()) == "http://sums.models.example.com"
    assert target.deployed("sums") == "1"


def test_a_cluster_that_does_not_answer_is_one_sentence():
    configuration = client.Configuration(host="http://127.0.0.1:9")
    configuration.retries = False
    with pytest.raises(PipelineError, match="does not answer"):
        KubernetesTarget(serving(), client.ApiClient(configuration)).deployed("sums")


@pytest.mark.parametrize("kind", ["deployment", "kserve"])
def test_a_manifest_names_an_immutable_version_and_fetches_it_verified(kind):
    objects = render(served(), serving(kind))
    first = objects[0]
    assert first["metadata"]["annotations"]["grpo-pipeline/version"] == "1"
    assert (
        first["metadata"]["annotations"]["grpo-pipeline/weights"] == f"s3://bucket/store/merged/abc@sha256:{'1' * 64}"
    )
    pod = first["spec"]["predictor"] if kind == "kserve" else first["spec"]["template"]["spec"]
    fetch, server = pod["initContainers"][0], pod["containers"][0]
    assert fetch["command"] == ["python", "-m", "components.storage", "fetch"]
    assert fetch["args"] == [f"s3://bucket/store/merged/abc@sha256:{'1' * 64}", "/weights/sums"]
    assert {"name": "AWS_ENDPOINT_URL", "value": "http://s3.storage:8333"} in fetch["env"]
    assert fetch["envFrom"] == [{"secretRef": {"name": "s3"}}]
    assert "--model=/weights/sums" in server["args"]
    assert "--dtype=bfloat16" in server["args"]
    assert ":latest" not in json.dumps(objects)


def test_the_manifests_of_the_core_kinds_have_the_fields_the_client_knows():
    api = client.ApiClient()
    for manifest, kind in zip(render(served(), serving()), ("V1Deployment", "V1Service"), strict=True):
        answer = type("Answer", (), {"data": json.dumps(manifest)})
        assert api.sanitize_for_serialization(api.deserialize(answer, kind)) == manifest


def test_the_manifests_are_valid_by_the_strict_schemas_of_kubernetes():
    validate = pytest.importorskip("kubernetes_validate").validate
    for manifest in render(served(), serving()):
        validate(manifest, "1.30", strict=True)
    predictor = render(served(), serving("kserve"))[0]["spec"]["predictor"]
    pod = {key: predictor[key] for key in predictor if key not in ("minReplicas", "maxReplicas", "annotations")}
    validate({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "sums"}, "spec": pod}, "1.30", strict=True)


def test_weights_no_cluster_reaches_are_refused():
    with pytest.raises(BadInputError, match="no cluster reaches"):
        render(served(uri="file:///store/merged/abc"), serving())


def test_the_gitops_target_writes_one_file_and_stops(tmp_path):
    target = GitopsTarget(ServingConfig(target="gitops", folder=str(tmp_path)))
    assert target.deployed("sums") is None
    assert "grpo-pipeline/version: '1'" in target.changes(served())
    target.deploy(served())
    assert target.wait(served()) is None
    assert target.serves(served())
    assert target.deployed("sums") == "1"
    assert [path.name for path in tmp_path.iterdir()] == ["grpo-sums.yaml"]
    kinds = [manifest["kind"] for manifest in yaml.safe_load_all((tmp_path / "grpo-sums.yaml").read_text())]
    assert kinds == ["Deployment", "Service"]
    target.remove("sums")
    assert list(tmp_path.iterdir()) == []


def test_gitops_without_a_folder_is_refused(tmp_path):
    with pytest.raises(ValidationError, match="needs folder"):
        ServingConfig(target="gitops")
    with pytest.raises(BadInputError, match="does not exist"):
        GitopsTarget(ServingConfig(target="gitops", folder=str(tmp_path / "no"))).deploy(served())


def test_the_init_container_links_verified_weights_or_nothing(tmp_path, capsys):
    weights = tmp_path / "weights"
    weights.mkdir()
    (weights / "model.safetensors").write_bytes(b"1234")
    reference = open_store(str(tmp_path / "store")).put(weights, "merged/abc", provenance={})
    folder = tmp_path / "volume" / "sums"
    assert storage_command(["fetch", str(reference), str(folder)]) == 0
    assert (folder / "model.safetensors").read_bytes() == b"1234"
    assert storage_command(["fetch", str(reference), str(folder)]) == 0
    folder.unlink()
    (tmp_path / "store" / "merged" / "abc" / "model.safetensors").write_bytes(b"1235")
    assert storage_command(["fetch", str(reference), str(folder)]) == 1
    assert "model.safetensors" in capsys.readouterr().err
    assert not folder.exists()

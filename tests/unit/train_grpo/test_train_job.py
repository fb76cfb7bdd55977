"""A training handed to a TrainJob: made, followed, taken up again, cleaned up; and what comes of it."""

import json
import os
import signal
import threading
from pathlib import Path

import jsonschema
import pytest
import yaml

from components.contract.config import ContractConfig
from components.errors import GateFailedError, PipelineError, ResumableError
from components.rewards.config import RewardsConfig
from components.storage.references import Reference
from components.storage.store import open_store
from components.tracking.config import TrackingConfig
from components.train_grpo import train_job
from components.train_grpo.config import LoraConfig, PolicyConfig, TrainingConfig
from components.train_grpo.train import TrainingInputs, inputs_from_sections
from components.train_grpo.train_job import given_to_nodes, job_manifest, run_in_job, say
from pipeline.config import load_config
from pipeline.pods import train_job as asked_for
from pipeline.resources import ResourcesConfig

UNIT = Path(__file__).parents[1]
KEY = "ab" * 32
REFERENCE = f"s3://artifacts/grpo/training/x/adapter@sha256:{'0' * 64}"


@pytest.fixture
def inputs():
    some = Reference("s3://artifacts/grpo/models/x", "1" * 64)
    return TrainingInputs(
        run_name="mine",
        seed=7,
        model=PolicyConfig(dtype="bfloat16"),
        base=some,
        dataset=some,
        contract=ContractConfig(),
        rewards=RewardsConfig(),
        training=TrainingConfig.model_validate({"max_steps": 3, "num_generations": 8}),
        lora=LoraConfig(),
        stages=(),
        tracking=TrackingConfig(uri="http://mlflow:5000"),
        code="c" * 32,
        attempt="again",
    )


@pytest.fixture
def asked(monkeypatch):
    monkeypatch.setattr(train_job, "POLL_SECONDS", 0.01)
    resources = load_config(UNIT / "pipeline" / "compiled" / "run.yaml").resources
    values = resources.model_dump(mode="json")
    values["train_grpo"]["nodes"] = 2
    found = asked_for(ResourcesConfig.model_validate(values), "train_grpo")
    monkeypatch.setenv(train_job.JOB_VARIABLE, json.dumps(found))
    return found


@pytest.fixture
def store(tmp_path):
    return open_store(str(tmp_path / "store"))


class Cluster:
    """TrainJobs by name; each ends as `plan` says, one entry a job."""

    def __init__(self, *plan):
        self.plan, self.jobs, self.made, self.removed = list(plan), {}, [], []
        self.looks = 0

    def get(self, name):
        self.looks += 1
        job = self.jobs.get(name)
        if job and self.looks > 3 and "status" not in job:
            end = self.plan.pop(0)
            if callable(end):
                end = end()
            if end:
                job["status"] = {"conditions": [{"type": end, "status": "True"}]}
        return job

    def create(self, manifest):
        self.looks = 0
        self.made.append(manifest)
        self.jobs[manifest["metadata"]["name"]] = dict(manifest)

    def delete(self, name):
        if self.jobs.pop(name, None):
            self.removed.append(name)

    def log_lines(self, name):
        yield "step 1 of 3"


def ends(store, words, state="Complete"):
    def end():
        say(store, KEY, words)
        return state

    return end


def run(inputs, store, cluster):
    return run_in_job(inputs, store, prefix="training/x", key=KEY, jobs=cluster)


def test_the_job_is_made_followed_and_removed(inputs, store, asked, capfd):
    cluster = Cluster(ends(store, {"reference": REFERENCE, "run_id": "r1"}))
    reference, run_id = run(inputs, store, cluster)
    assert (str(reference), run_id) == (REFERENCE, "r1")
    assert len(cluster.made) == len(cluster.removed) == 1
    assert not cluster.jobs
    assert "step 1 of 3" in capfd.readouterr().err


def test_every_node_asks_for_what_the_config_says(inputs, store, asked, monkeypatch):
    monkeypatch.setenv("KFP_POD_NAME", "pod-1")
    monkeypatch.setenv("KFP_POD_UID", "uid-1")
    job = job_manifest("grpo-x", asked, given_to_nodes(inputs, store, prefix="training/x", key=KEY))
    schema = json.loads((UNIT / "k8s" / "schemas" / "trainer.kubeflow.org-v1alpha1-trainjob.json").read_text())
    jsonschema.validate(job, schema)
    trainer = job["spec"]["trainer"]
    assert (trainer["numNodes"], trainer["numProcPerNode"]) == (2, 4)
    assert trainer["resourcesPerNode"]["limits"] == {"cpu": "16", "memory": "128Gi", "nvidia.com/gpu": "4"}
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "grpo"
    assert job["metadata"]["ownerReferences"][0]["uid"] == "uid-1"
    pod = job["spec"]["runtimePatches"][0]["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"][0]
    spec = pod["template"]["spec"]["template"]["spec"]
    assert spec["tolerations"][1] == {
        "key": "pool", "operator": "Equal", "value": "gpu", "effect": "NoExecute", "tolerationSeconds": 300
    }  # fmt: skip
    assert {volume["name"] for volume in spec["volumes"]} == {"shared-memory", "work", "cache", "ca"}
    secret = next(entry for entry in trainer["env"] if entry["name"] == "AWS_SECRET_ACCESS_KEY")
    assert secret["valueFrom"] == {"secretKeyRef": {"name": "grpo-store", "key": "secret-key"}}


def test_the_runtime_it_names_is_the_one_in_k8s(inputs, store, asked):
    job = job_manifest("grpo-x", asked, "{}")
    runtime = yaml.safe_load((UNIT.parents[1] / "k8s" / "overlays" / "gpu" / "training-runtime.yaml").read_text())
    reference = job["spec"]["runtimeRef"]
    assert (reference["kind"], reference["name"]) == (runtime["kind"], runtime["metadata"]["name"])
    patched = job["spec"]["runtimePatches"][0]["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"][0]["name"]
    assert patched == runtime["spec"]["template"]["spec"]["replicatedJobs"][0]["name"]


def test_ranks_train_on_the_same_inputs(inputs, store):
    given = json.loads(given_to_nodes(inputs, store, prefix="training/x", key=KEY))
    assert inputs_from_sections(**given["sections"]) == inputs


def test_a_job_that_runs_already_is_taken_up(inputs, store, asked):
    cluster = Cluster(ends(store, {"reference": REFERENCE, "run_id": "r1"}))
    cluster.jobs[f"grpo-{KEY[:24]}"] = {"metadata": {}}
    run(inputs, store, cluster)
    assert not cluster.made


def test_a_job_that_ended_before_and_its_words_are_replaced(inputs, store, asked):
    say(store, KEY, {"error": "PipelineError", "message": "of an earlier try"})
    cluster = Cluster(ends(store, {"reference": REFERENCE, "run_id": "r2"}))
    cluster.jobs[f"grpo-{KEY[:24]}"] = {"status": {"conditions": [{"type": "Failed", "status": "True"}]}}
    assert run(inputs, store, cluster)[1] == "r2"
    assert len(cluster.made) == 1


def test_a_guard_that_stopped_the_nodes_is_a_gate_here(inputs, store, asked):
    cluster = Cluster(ends(store, {"error": "GateFailedError", "message": "the reward is saturated"}, "Failed"))
    with pytest.raises(GateFailedError, match="saturated"):
        run(inputs, store, cluster)
    assert cluster.removed


def test_a_job_that_died_without_a_word_may_be_tried_again(inputs, store, asked):
    with pytest.raises(PipelineError, match="ended without a word"):
        run(inputs, store, Cluster("Failed"))


def test_out_of_memory_starts_a_job_anew(inputs, store, asked):
    cluster = Cluster(ends(store, {"again": True}, "Failed"), ends(store, {"reference": REFERENCE, "run_id": "r1"}))
    assert run(inputs, store, cluster)[1] == "r1"
    assert len(cluster.made) == 2


def test_a_step_that_is_told_to_stop_removes_the_job_and_is_resumable(inputs, store, asked):
    cluster = Cluster(*[None] * 10_000)
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM)).start()
    with pytest.raises(ResumableError):
        run(inputs, store, cluster)
    assert cluster.removed


def test_outside_a_cluster_it_is_refused(inputs, store, asked, monkeypatch):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(PipelineError, match="write nodes: 1"):
        run_in_job(inputs, store, prefix="training/x", key=KEY)


def test_a_node_without_the_chosen_checkpoint_fetches_that_one(tmp_path, store):
    from components.train_grpo.checkpoints import fetch_checkpoint

    for step in (2, 4):
        (tmp_path / f"c{step}").mkdir()
        (tmp_path / f"c{step}" / "state.json").write_text(str(step))
        store.put(tmp_path / f"c{step}", f"training/x/checkpoints/checkpoint-{step}", provenance={})
    found = fetch_checkpoint(store, "training/x/checkpoints", 2, tmp_path / "cache")
    assert (found.directory / "state.json").read_text() == "2"
    with pytest.raises(PipelineError, match="step 6"):
        fetch_checkpoint(store, "training/x/checkpoints", 6, tmp_path / "cache")

"""The pipeline as a cluster gets it, both documents, held against a file; and that nothing private is in it.

`UPDATE_GOLDEN=1 pytest tests/unit/pipeline/test_compile.py` writes the file anew; look at the difference before you
commit it. What changes with every edit of a step (its source in the executor, fingerprints) is left out.
"""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from components.errors import BadInputError
from pipeline.cluster.cluster_config import config_for_cluster, sweep_for_cluster
from pipeline.cluster.cluster_graph import compile_for_cluster, compile_resources, compile_sweep_for_cluster
from pipeline.config import load_config
from pipeline.fingerprint import code_fingerprint
from pipeline.planning.sweep import make_sweep
from pipeline.resources import ResourcesConfig
from pipeline.runners import STEP_ORDER

HERE = Path(__file__).parent / "compiled"
GOLDEN = HERE / "golden.yaml"
STORE = "store: {uri: 's3://artifacts/grpo'}\ntracking: {uri: 'http://mlflow.grpo.svc:5000'}\n"
MINIMAL = f"model: {{source: org/model}}\ndata: {{train: {{hub: org/data}}}}\n{STORE}"
SECRETS = {
    "AWS_ACCESS_KEY_ID": "AKIAsecretsecret1",
    "AWS_SECRET_ACCESS_KEY": "hunter2-store",
    "AWS_SESSION_TOKEN": "hunter2-session",
    "MLFLOW_TRACKING_PASSWORD": "hunter2-mlflow",
    "MLFLOW_TRACKING_TOKEN": "hunter2-bearer",
    "HF_TOKEN": "hf_hunter2",
    "WANDB_API_KEY": "hunter2-wandb",
    "KFP_TOKEN": "hunter2-kfp",
    "KFP_COOKIE": "hunter2-cookie",
}


@pytest.fixture(scope="module")
def config():
    return config_for_cluster(load_config(HERE / "run.yaml"))


@pytest.fixture(scope="module")
def documents(config, tmp_path_factory):
    output = tmp_path_factory.mktemp("compiled") / "run.yaml"
    compile_for_cluster(config, output)
    return list(yaml.safe_load_all(output.read_text()))


def essence(documents):
    """What a cluster acts on, without sources and fingerprints."""
    pipeline, platform = documents
    steps = {}
    for name, task in pipeline["root"]["dag"]["tasks"].items():
        component = pipeline["components"][task["componentRef"]["name"]]
        container = pipeline["deploymentSpec"]["executors"][component["executorLabel"]]["container"]
        steps[name] = {
            "label": task["taskInfo"]["name"],
            "image": container["image"],
            "env": {entry["name"]: entry["value"] for entry in container.get("env", [])},
            "resources": container["resources"],
            "caching": task["cachingOptions"],
            "retries": task.get("retryPolicy", {}),
            "after": task.get("dependentTasks", []),
            "inputs": {
                name: _source(given) for name, given in task["inputs"]["parameters"].items() if name != "resources"
            },
        }
    return [steps, platform]


def _source(given):
    if "taskOutputParameter" in given:
        output = given["taskOutputParameter"]
        return f"{output['producerTask']}.{output['outputParameterKey']}"
    if "componentInputParameter" in given:
        return f"pipeline.{given['componentInputParameter']}"
    constant = given["runtimeValue"]["constant"]
    return "<code>" if constant in {code_fingerprint(step) for step in STEP_ORDER} else constant


def test_both_documents_are_as_written_down(documents):
    found = yaml.safe_dump_all(essence(documents), sort_keys=True)
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(found)
    assert found == GOLDEN.read_text()


def test_the_check_comes_first_and_everything_waits_for_it(documents):
    tasks = documents[0]["root"]["dag"]["tasks"]
    waiting = {name: set(task.get("dependentTasks", [])) for name, task in tasks.items()}
    assert not waiting["check-prerequisites"]
    for name in set(tasks) - {"check-prerequisites"}:
        assert "check-prerequisites" in waiting[name]
    assert not documents[0]["root"]["dag"]["tasks"]["check-prerequisites"]["cachingOptions"].get("enableCache")


def test_no_gpu_is_held_by_the_check(documents):
    container = documents[0]["deploymentSpec"]["executors"]["exec-check-prerequisites"]["container"]
    assert "accelerator" not in container["resources"]


def test_the_pipelines_one_parameter_is_the_whole_config_without_what_is_compiled_in(documents, config):
    parameters = documents[0]["root"]["inputDefinitions"]["parameters"]
    assert set(parameters) == {"config"}
    default = parameters["config"]["defaultValue"]
    assert default["model"]["source"] == "org/model"
    assert set(default) == set(type(config).model_fields) - {"resources"}


def test_secrets_are_named_and_given_to_the_steps_that_need_them_only(documents):
    pods = documents[1]["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    named = {name: {secret["secretName"] for secret in pod["secretAsEnv"]} for name, pod in pods.items()}
    with_hub = {name for name, secrets in named.items() if "grpo-hub" in secrets}
    assert with_hub == {"exec-check-prerequisites", "exec-import-model", "exec-prepare-dataset"}
    assert all("grpo-store" in secrets for secrets in named.values())


def test_no_container_runs_as_root(documents):
    pods = documents[1]["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    assert len(pods) == len(documents[0]["deploymentSpec"]["executors"])
    for pod in pods.values():
        assert pod["securityContext"] == {"runAsUser": "10001", "runAsGroup": "10001", "runAsNonRoot": True}


def test_resources_for_gitops_hold_the_same_pipeline(config, documents, tmp_path):
    compile_resources(config, tmp_path / "resources.yaml", namespace="kubeflow", version="grpo-1")
    pipeline, version = yaml.safe_load_all((tmp_path / "resources.yaml").read_text())
    assert (pipeline["kind"], version["kind"]) == ("Pipeline", "PipelineVersion")
    assert pipeline["apiVersion"] == version["apiVersion"] == "pipelines.kubeflow.org/v2beta1"
    assert version["spec"]["pipelineName"] == pipeline["metadata"]["name"]
    assert {pipeline["metadata"]["namespace"], version["metadata"]["namespace"]} == {"kubeflow"}
    spec = version["spec"]
    assert essence([spec["pipelineSpec"], spec["platformSpec"]]) == essence(documents)


def test_nothing_private_is_in_what_is_compiled(tmp_path, monkeypatch, seaweed_free_store):
    """Secrets of the environment, paths of this machine and moving tags, with every kind of local input."""
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    shutil.copytree(Path(__file__).parents[3] / "configs" / "quickstart" / "model", tmp_path / "model")
    row = json.dumps({"question": "1 + 1?", "answer": "2"})
    for name in ("train", "holdout", "also"):
        (tmp_path / f"{name}.jsonl").write_text(row.replace("1?", f"1? ({name})") + "\n")
    (tmp_path / "mine.py").write_text("def short(completions, **kwargs):\n    return [1.0 for _ in completions]\n")
    (tmp_path / "ca.pem").write_text("-")
    (tmp_path / "run.yaml").write_text(
        "model: {source: model}\n"
        "data: {train: train.jsonl, holdout: holdout.jsonl}\n"
        "evaluation: {also: [{name: other, path: also.jsonl}]}\n"
        "rewards: {correctness: 2.0, short: {use: 'mine.py:short', aspect: length}}\n"
        f"store: {{uri: 's3://artifacts/grpo', ca_bundle: {tmp_path}/ca.pem}}\n"
        "tracking: {uri: 'http://mlflow.grpo.svc:5000'}\n"
        "resources: {ca_config_map: grpo-ca}\n"
    )
    ready = config_for_cluster(load_config(tmp_path / "run.yaml"))
    compile_for_cluster(ready, tmp_path / "pipeline.yaml")
    compile_resources(ready, tmp_path / "resources.yaml", namespace="kubeflow", version="grpo-1")
    for name in ("pipeline.yaml", "resources.yaml"):
        text = (tmp_path / name).read_text()
        assert not [value for value in SECRETS.values() if value in text]
        for folder in (str(tmp_path), str(Path.cwd()), str(Path.home()) + "/"):
            assert folder not in text
        assert not re.search(r"image: \S+:latest|image: [^:\s]+$", text, re.MULTILINE)
        assert "use: mine.py:short" in text
        assert "s3://artifacts/grpo/inputs/" in text


@pytest.fixture
def seaweed_free_store(monkeypatch, tmp_path):
    """A store that takes what an S3 store takes, without a server: the bucket is a folder."""
    from components.storage import store as storage
    from components.storage.config import StoreConfig
    from components.storage.references import Reference

    folder = tmp_path / "bucket"

    class Bucket:
        def __init__(self, config):
            self.inner = storage.open_store(StoreConfig(uri=str(folder)))
            self.uri, self.config = config.uri, config

        def check_writable(self):
            self.inner.check_writable()

        def put(self, directory, key, *, provenance):
            stored = self.inner.put(directory, key, provenance=provenance)
            return Reference.parse(str(stored).replace(self.inner.uri, self.uri))

    monkeypatch.setattr("pipeline.cluster.cluster_config.open_store", Bucket)


@pytest.mark.parametrize(
    ("text", "mend"),
    [
        ("store: {uri: .grpo/store}\ntracking: {uri: 'http://mlflow:5000'}\n", "store.uri: s3://bucket/prefix"),
        ("store: {uri: 's3://artifacts/grpo'}\n", "the URL of an MLflow server"),
        ("store: {uri: 's3://artifacts/grpo'}\ntracking: {uri: 'http://127.0.0.1:5000'}\n", "the Service's URL"),
        (
            STORE.replace("grpo'}", "grpo', endpoint_url: 'http://localhost:8333'}"),
            "--store-endpoint",
        ),
        (STORE + "resources: {images: {train: registry.example.org/train:latest}}\n", "write a digest"),
        (STORE + "resources: {images: {train: registry.example.org/train}}\n", "write a digest"),
        (STORE + "resources: {train_grpo: {priority_class: high}}\n", "name a queue"),
        (STORE + "resources: {merge_lora: {nodes: 2}}\n", "only train_grpo"),
        (STORE + "resources: {environment: {HF_TOKEN: abc}}\n", "resources.secrets"),
        (STORE + "resources: {secrets: [{name: s, variables: {A: a}, steps: [trian]}]}\n", "is no step"),
        (
            STORE + "training: {num_generations: 6, prompts_per_step: 1}\nresources: {train_grpo: {gpus: 4}}\n",
            "4 process",
        ),
    ],
)
def test_what_no_cluster_could_run_is_refused_with_the_mend(tmp_path, text, mend):
    (tmp_path / "run.yaml").write_text("model: {source: org/model}\ndata: {train: {hub: org/data}}\n" + text)
    with pytest.raises(BadInputError, match=re.escape(mend)):
        config_for_cluster(load_config(tmp_path / "run.yaml"))


def test_a_path_of_this_machine_that_is_left_anywhere_is_refused(tmp_path):
    (tmp_path / "run.yaml").write_text(MINIMAL + f"data: {{}}\ncontract: {{system_prompt: {tmp_path}}}\n")
    text = (tmp_path / "run.yaml").read_text().replace("data: {}\n", "")
    (tmp_path / "run.yaml").write_text(text)
    with pytest.raises(BadInputError, match="contract.system_prompt"):
        config_for_cluster(load_config(tmp_path / "run.yaml"))


def test_a_training_on_several_nodes_leaves_the_gpus_to_its_nodes():
    resources = ResourcesConfig.model_validate({"train_grpo": {"nodes": 2, "gpus": 8, "cpu": "64"}, "queue": "grpo"})
    assert resources.pod("train_grpo").gpus == 0
    assert resources.step("train_grpo").gpus == 8


def test_a_training_on_several_nodes_is_told_what_they_ask_for(tmp_path):
    config = config_for_cluster(load_config(HERE / "run.yaml", ["resources.train_grpo.nodes=2"]))
    compile_for_cluster(config, tmp_path / "nodes.yaml")
    documents = list(yaml.safe_load_all((tmp_path / "nodes.yaml").read_text()))
    container = documents[0]["deploymentSpec"]["executors"]["exec-train-grpo"]["container"]
    asked = json.loads({entry["name"]: entry["value"] for entry in container["env"]}["GRPO_TRAIN_JOB"])
    assert (asked["nodes"], asked["gpus"]) == (2, 4)
    assert asked["secrets"] == [
        {"name": "grpo-store", "variables": config.resources.secrets[0].variables},
    ]
    assert "accelerator" not in container["resources"]
    pod = documents[1]["platforms"]["kubernetes"]["deploymentSpec"]["executors"]["exec-train-grpo"]
    assert "kueue.x-k8s.io/queue-name" not in pod["podMetadata"]["labels"]


def test_what_is_not_said_of_a_step_stays_its_default():
    resources = ResourcesConfig.model_validate({"train_grpo": {"gpus": 4}})
    assert resources.train_grpo.memory == ResourcesConfig().train_grpo.memory == "32Gi"
    assert ResourcesConfig.from_json(resources.to_json()) == resources


def test_the_local_run_asks_nothing_of_kubernetes(config, tmp_path):
    from pipeline.graph import build_pipeline, compile_pipeline

    compile_pipeline(build_pipeline(config.resources, retries=False), {}, tmp_path / "local.yaml")
    assert len(list(yaml.safe_load_all((tmp_path / "local.yaml").read_text()))) == 1


def test_the_command_says_what_the_file_cannot_hold(tmp_path):
    (tmp_path / "run.yaml").write_text(MINIMAL + "resources: {service_account: runner}\n")
    command = ["grpo", "compile", str(tmp_path / "run.yaml"), "-o", str(tmp_path / "out.yaml")]
    done = subprocess.run([*_python(), *command[1:]], capture_output=True, text=True, check=True)
    assert "choose runner when you start one" in done.stdout
    assert "name digests" in done.stdout


def _python():
    import sys

    return [sys.executable, "-m", "pipeline.cli"]


def compile_sweep(folder, *grid):
    made = sweep_for_cluster(make_sweep(HERE / "run.yaml", [], grid, parallel=4))
    compile_sweep_for_cluster(made, folder / "sweep.yaml")
    return list(yaml.safe_load_all((folder / "sweep.yaml").read_text()))


def test_a_sweep_checks_first_and_takes_shared_sections_from_that(tmp_path):
    pipeline, _ = compile_sweep(tmp_path, "training.learning_rate=1e-6,2e-6", "lora.r=8,16")
    tasks = pipeline["root"]["dag"]["tasks"]
    assert {"check-prerequisites", "smoke-test-rewards", "train-points", "merge-lora"} < set(tasks)
    unchecked = {
        (task, _source(given))
        for task, value in tasks.items()
        for given in value["inputs"]["parameters"].values()
        if "componentInputParameter" in given
    }
    assert unchecked == {("check-prerequisites", "pipeline.config"), ("train-points", "pipeline.points")}
    parameters = pipeline["root"]["inputDefinitions"]["parameters"]
    assert parameters["config"]["isOptional"]
    points = parameters["points"]["defaultValue"]
    assert [json.loads(point["lora"])["r"] for point in points] == [8, 16, 8, 16]
    assert {name for point in points for name in point} == {"label", "run", "training", "lora"}


def test_a_sweeps_trainings_ask_for_the_gpu_of_the_config(tmp_path, documents):
    """What a node must give a training is the same in a sweep as in a run of its own."""

    def executor(pipeline):
        executors = pipeline["deploymentSpec"]["executors"]
        return next(value["container"] for name, value in executors.items() if "train-grpo" in name)

    swept, alone = executor(compile_sweep(tmp_path, "training.learning_rate=1e-6,2e-6")[0]), executor(documents[0])
    assert (swept["image"], swept["resources"]) == (alone["image"], alone["resources"])


def test_a_batch_of_one_point_that_its_gpus_cannot_share_is_refused(tmp_path):
    (tmp_path / "run.yaml").write_text(MINIMAL + "resources: {train_grpo: {gpus: 4}}\n")
    grid = ["training.prompts_per_step=8,1", "training.num_generations=6"]
    with pytest.raises(BadInputError, match="4 process"):
        sweep_for_cluster(make_sweep(tmp_path / "run.yaml", [], grid, parallel=1))

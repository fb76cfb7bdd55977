"""The compiled pipeline: every step, its image, its wiring; and nothing in it that must not leave this machine."""

import pytest
import yaml

from pipeline.arguments import pipeline_arguments
from pipeline.config import load_config
from pipeline.graph import UNCACHED, build_pipeline, compile_pipeline

MINIMAL = "model: {source: org/model}\ndata: {train: {hub: org/data}}\nstore: {uri: s3://artifacts/grpo}\n"
SECRET = "hunter2-secret"


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compiled")
    (folder / "run.yaml").write_text(MINIMAL + "tracking: {uri: 'http://mlflow.example.com'}\n")
    config = load_config(folder / "run.yaml")
    arguments = pipeline_arguments(config, model_inputs="", data_inputs="")
    compile_pipeline(build_pipeline(config.resources), arguments, folder / "pipeline.yaml")
    return list(yaml.safe_load_all((folder / "pipeline.yaml").read_text()))


@pytest.fixture(scope="module")
def tasks(compiled):
    return compiled[0]["root"]["dag"]["tasks"]


def test_the_graph_has_every_step_and_evaluates_twice(tasks):
    assert sorted(tasks) == [
        "evaluate-holdout",
        "evaluate-holdout-2",
        "import-model",
        "judge-candidate",
        "merge-lora",
        "prepare-dataset",
        "register-model",
        "smoke-test-rewards",
        "train-grpo",
    ]


def test_nothing_is_trained_before_the_rewards_have_passed(tasks):
    assert "smoke-test-rewards" in tasks["train-grpo"]["dependentTasks"]


def test_the_holdout_goes_to_the_evaluations_and_the_record_only(tasks):
    takers = {
        name
        for name, task in tasks.items()
        for given in task["inputs"]["parameters"].values()
        if given.get("taskOutputParameter", {}).get("outputParameterKey") == "holdout"
    }
    assert takers == {"evaluate-holdout", "evaluate-holdout-2", "register-model"}


def test_steps_with_effects_are_never_cached(tasks):
    uncached = {name for name, task in tasks.items() if not task["cachingOptions"].get("enableCache")}
    assert uncached == {name.replace("_", "-") for name in UNCACHED} & set(tasks)


def test_the_config_is_the_pipelines_parameters(compiled):
    parameters = compiled[0]["root"]["inputDefinitions"]["parameters"]
    assert '"source":"org/model"' in parameters["model"]["defaultValue"]
    assert {"run", "data", "contract", "rewards", "training", "lora", "gates", "registry", "store"} <= set(parameters)


def test_every_image_is_tagged_and_none_is_latest(compiled):
    images = [executor["container"]["image"] for executor in compiled[0]["deploymentSpec"]["executors"].values()]
    assert images
    assert all(":" in image.rsplit("/", 1)[1] and not image.endswith(":latest") for image in images)


def test_training_asks_for_a_gpu_and_is_started_again(compiled, tasks):
    resources = compiled[0]["deploymentSpec"]["executors"]["exec-train-grpo"]["container"]["resources"]
    assert resources["accelerator"]["resourceCount"] == "1"
    assert tasks["train-grpo"]["retryPolicy"]["maxRetryCount"] == 2


def test_no_secret_of_the_environment_reaches_the_pipeline(tmp_path, monkeypatch):
    for name in ("AWS_SECRET_ACCESS_KEY", "MLFLOW_TRACKING_PASSWORD", "HF_TOKEN"):
        monkeypatch.setenv(name, SECRET)
    (tmp_path / "run.yaml").write_text(MINIMAL)
    config = load_config(tmp_path / "run.yaml")
    arguments = pipeline_arguments(config, model_inputs="", data_inputs="")
    compile_pipeline(build_pipeline(config.resources), arguments, tmp_path / "pipeline.yaml")
    assert SECRET not in (tmp_path / "pipeline.yaml").read_text()

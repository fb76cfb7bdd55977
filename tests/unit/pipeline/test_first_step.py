"""The first step on a cluster: the config a run was started with is read and refused as on the command line."""

import json
from pathlib import Path

import pytest

from components.check_prerequisites.check import State
from components.errors import BadInputError
from pipeline.arguments import pipeline_arguments
from pipeline.cluster import first_step
from pipeline.cluster.cluster_config import config_for_cluster
from pipeline.cluster.cluster_graph import pipeline_parameters
from pipeline.config import load_config

RUN = Path(__file__).parent / "compiled" / "run.yaml"


@pytest.fixture(scope="module")
def config():
    return config_for_cluster(load_config(RUN, ["training.temperature=1.0", "training.learning_rate=5e-6"]))


def as_kfp_hands_it_on(value):
    """Every number a float."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return float(value)
    if isinstance(value, dict):
        return {key: as_kfp_hands_it_on(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [as_kfp_hands_it_on(entry) for entry in value]
    return value


def test_the_config_comes_through_kfp_as_it_was(config):
    given = json.loads(json.dumps(as_kfp_hands_it_on(pipeline_parameters(config)["config"])))
    read = first_step.read_config(given, config.resources)
    assert pipeline_arguments(read, model_inputs="", data_inputs="") == pipeline_arguments(
        config, model_inputs="", data_inputs=""
    )


def test_the_outputs_are_what_the_graph_takes(config):
    from pipeline.graph import build_pipeline

    outputs = set(first_step.check_prerequisites.component_spec.outputs) - {"report"}
    assert outputs == set(pipeline_arguments(config, model_inputs="", data_inputs=""))
    assert outputs == set(build_pipeline(config.resources).component_spec.inputs)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"trainig": {}}, "did you mean 'training'?"),
        ({"training": {"max_steps": "many"}}, "max_steps"),
        ({"resources": {"train_grpo": {"gpus": 1}}}, "fixed when the pipeline is compiled"),
        ({"data": {"train": "/home/me/rows.jsonl"}}, "does not exist"),
        ({"data": {"train": __file__}}, "no pod has them"),
        ({"tracking": {"uri": "sqlite:///mlflow.db"}}, "URL of an MLflow server"),
    ],
)
def test_a_config_changed_in_the_ui_is_refused_as_on_the_command_line(config, change, words):
    given = pipeline_parameters(config)["config"] | change
    with pytest.raises(BadInputError, match=words):
        first_step.read_config(given, config.resources)


def test_places_are_where_the_run_reads_from(config):
    found = {place.field: (place.kind, place.name) for place in first_step.places(config)}
    assert found == {"model.source": ("hub model", "org/model"), "data.train": ("hub dataset", "org/data")}


def test_gpus_that_cannot_be_asked_for_are_told_and_fail_nothing(config, monkeypatch):
    for variable in ("KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"):
        monkeypatch.delenv(variable, raising=False)
    found = first_step.check_gpus(config)
    assert {finding.name for finding in found} == {"GPU for train_grpo", "GPU for evaluate_holdout"}
    assert {finding.state for finding in found} == {State.UNKNOWN}

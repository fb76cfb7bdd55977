"""The first step of a run on a cluster: reads the run config the pipeline was started with, and checks what it needs.

cluster_graph.py puts the component in front; `read_and_check` is its one call. A person may start a run with a changed
config from the KFP UI (as in a file, in JSON and without paths of a machine), so the whole config is read and refused
here as on the command line. What was compiled in (images, GPUs, Secrets) cannot change with it; a config that
says otherwise is refused. The checks themselves are in components/check_prerequisites.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from kfp import dsl

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
from components.check_prerequisites.nodes import Node, Wanted, check_nodes
from components.errors import BadInputError, PipelineError
from components.prepare_dataset.config import FileSource, GeneratedSource, HubSource
from components.storage.store import open_store
from components.train_grpo.trl_fields import load_fields
from pipeline.arguments import pipeline_arguments
from pipeline.cluster.cluster_config import has_local_inputs, refuse_what_pods_cannot_reach
from pipeline.config import RunConfig, build_config
from pipeline.resources import ResourcesConfig, StepResources

NAME = "check_prerequisites"
MANY_ROWS = 1_000_000
"""Stands for the training rows, which are not counted here: memory does not depend on them."""


@dsl.component(base_image="python", install_kfp_package=False)
def check_prerequisites(config: dict, resources: str, report: dsl.Output[dsl.Markdown]) -> NamedTuple(  # type: ignore[valid-type]
    "Sections",
    [
        ("run", str),
        ("model", str),
        ("data", str),
        ("contract", str),
        ("rewards", str),
        ("smoke_test", str),
        ("sampling", str),
        ("training", str),
        ("lora", str),
        ("stages", str),
        ("merge", str),
        ("evaluation", str),
        ("gates", str),
        ("registry", str),
        ("tracking", str),
        ("store", str),
        ("config", str),
        ("model_inputs", str),
        ("data_inputs", str),
    ],
):
    """Read the run config and check what the run needs: store, MLflow, model, data, rewards, GPUs.

    Args:
        config: the whole run config, as the pipeline takes it.
        resources: the resources section the pipeline was compiled with, JSON.
        report: what was checked, and what was found.

    Returns:
        The config's sections, JSON, as the other steps take them.
    """
    from collections import namedtuple

    from components.steps import step

    with step("check_prerequisites"):
        from pipeline.cluster.first_step import read_and_check

        sections = read_and_check(config, resources, report.path)
    return namedtuple("Sections", list(sections))(**sections)


def read_and_check(config: dict[str, Any], resources: str, page: str) -> dict[str, str]:
    """What the component does.

    Args:
        config: the whole run config.
        resources: the resources section the pipeline was compiled with, JSON.
        page: file to write the report to.

    Returns:
        The pipeline's parameters (pipeline/arguments.py).

    Raises:
        BadInputError: when the config is not valid or a check failed.
    """
    loaded = read_config(config, ResourcesConfig.from_json(resources))
    findings = check_run(loaded)
    Path(page).write_text(report(findings), encoding="utf-8")
    fail_on(findings)
    return pipeline_arguments(loaded, model_inputs="", data_inputs="")


def read_config(values: Mapping[str, Any], compiled: ResourcesConfig) -> RunConfig:
    """The run config a run was started with.

    Args:
        values: nested, as KFP hands it on: it makes every number a float.
        compiled: the resources section the pipeline was compiled with.

    Raises:
        BadInputError: when it is not valid, or its resources are others.
    """
    given = {"resources": compiled.model_dump(mode="json"), **_whole_numbers(values)}
    stages = given.get("stages")
    for section in (given, *(stages if isinstance(stages, list) else [])):
        if isinstance(section, dict) and isinstance(section.get("training"), dict):
            section["training"] = _trl_floats(section["training"])
    config = build_config(given, origin="config", folder=Path.cwd())
    if config.resources != compiled:
        changed = [name for name, value in config.resources if value != getattr(compiled, name)]
        raise BadInputError(
            f"resources.{changed[0]}: images and resources are fixed when the pipeline is compiled; leave the section "
            "as it was (or out), or compile and submit anew"
        )
    refuse_what_pods_cannot_reach(config)
    if has_local_inputs(config):
        raise BadInputError(
            "config: names files of a machine, and no pod has them; `grpo submit` puts them into the store, or name "
            "s3:// URIs and hub ids"
        )
    return config


def _whole_numbers(value: Any) -> Any:
    """Nested data with whole floats as whole numbers; a field that is a float makes one of it again."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        return {key: _whole_numbers(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_whole_numbers(entry) for entry in value]
    return value


def _trl_floats(training: Mapping[str, Any]) -> dict[str, Any]:
    """The section with floats where GRPOConfig's default is one: these fields are passed through as they are."""
    fields = load_fields()
    return {
        key: float(value)
        if isinstance(value, int)
        and not isinstance(value, bool)
        and key in fields
        and isinstance(fields[key].default, float)
        else value
        for key, value in training.items()
    }


def check_run(config: RunConfig) -> list[Finding]:
    """Make every check.

    Args:
        config: the run config.
    """
    store = open_store(config.store)
    checks: list[tuple[str, Any]] = [
        ("store", lambda: check_store(store)),
        ("MLflow", lambda: check_mlflow(config.tracking.uri)),
    ]
    checks += [(place.field, lambda place=place: check_place(place, config.store)) for place in places(config)]
    checks.append(("rewards", lambda: check_rewards(config.rewards, config.contract)))
    return check_all(checks) + check_gpus(config)


def places(config: RunConfig) -> list[Place]:
    """Where the run reads from.

    Args:
        config: the run config.
    """
    model = config.model
    found = [
        Place("model.source", "s3", model.source)
        if model.source.startswith("s3://")
        else Place("model.source", "hub model", model.source, model.revision)
    ]
    for name, source in config.data.sources().items():
        field = f"data.{name}"
        if isinstance(source, HubSource):
            found.append(Place(field, "hub dataset", source.hub, source.revision))
        elif isinstance(source, GeneratedSource):
            found.append(Place(field, "generated", source.task))
        elif isinstance(source, FileSource):
            found.append(_stored(field, source.path))
    found += [_stored(f"evaluation.also.{e.name}", e.path) for e in config.evaluation.also if e.path is not None]
    return found


def check_gpus(config: RunConfig) -> list[Finding]:
    """Whether the cluster has nodes for the steps that ask for GPUs.

    Args:
        config: the run config.
    """
    from components.check_prerequisites.nodes import read_nodes

    asking = {name: step for name, step in config.resources if isinstance(step, StepResources) and step.gpus}
    if not asking:
        return []
    nodes = read_nodes()
    if isinstance(nodes, str):
        return [Finding(f"GPU for {name}", State.UNKNOWN, nodes) for name in asking]
    return [check_nodes(nodes, _wanted(config, name, step, nodes)) for name, step in asking.items()]


def _wanted(config: RunConfig, name: str, step: StepResources, nodes: list[Node]) -> Wanted:
    return Wanted(
        step=name,
        pods=step.nodes,
        gpus=step.gpus,
        gpu_type=step.gpu_type,
        cpu=step.cpu,
        memory=step.memory,
        gpu_memory_gib=_training_gib(config) if name == "train_grpo" else None,
        node_selector=step.node_selector,
        tolerations=[taint.model_dump(exclude_none=True) for taint in step.tolerations],
        autoscaled=config.resources.autoscaled,
    )


def _training_gib(config: RunConfig) -> float | None:
    """GiB a GPU needs for the training, by the estimate of `grpo plan`; None where the model's shape is not known."""
    from pipeline.planning.plan import make_plan

    with TemporaryDirectory() as folder:
        try:
            shape = _stored_shape(config, Path(folder)) if config.model.source.startswith("s3://") else None
            if shape is None and config.model.source.startswith("s3://"):
                return None
            return make_plan(config, gpu=None, model_config=shape, rows=MANY_ROWS).memory["total"]
        except PipelineError:
            return None  # an unreadable model is a finding of its own


def _stored_shape(config: RunConfig, folder: Path) -> Path | None:
    """config.json of a model in S3; None when there is none (a .gguf file)."""
    from components.storage.plain import download_source, find_source

    file = f"{config.model.source.rstrip('/')}/config.json"
    if re.search(r"\.gguf$", config.model.source):
        return None
    return download_source(find_source(file, config.store), folder, config=config.store)


def _stored(field: str, path: str) -> Place:
    if "@sha256:" in path:
        return Place(field, "artifact", path)
    return Place(field, "s3", path)

"""The pipeline as a cluster runs it: the one graph (graph.py) behind a first step that reads the config and checks.

Its one parameter is the whole run config, so that a person can start a changed run from the KFP UI. Called by
`grpo compile` and `grpo submit` (cluster.py). Images, resources and Secrets are compiled in, see pods.py.
"""

from pathlib import Path
from typing import Any

from kfp import compiler, dsl
from kfp.compiler.compiler_utils import KubernetesManifestOptions

from pipeline.cluster.first_step import NAME, check_prerequisites
from pipeline.config import RunConfig
from pipeline.graph import build_pipeline, placer
from pipeline.planning.sweep import Sweep, points_parameter
from pipeline.planning.sweep_graph import build_sweep
from pipeline.resources import ResourcesConfig

PIPELINE = "grpo"
"""Name of the pipeline on a cluster."""

SWEEP_PIPELINE = "grpo-sweep"
"""Name of a sweep's pipeline on a cluster."""

DESCRIPTION = "Fine-tune a language model with GRPO, judge it on a holdout, register it."


def build_cluster_pipeline(resources: ResourcesConfig, *, caching: bool = True) -> Any:
    """The pipeline with images and resources set.

    Args:
        resources: the config section.
        caching: whether pure steps may be answered from a cache.

    Returns:
        The KFP pipeline.
    """
    steps = build_pipeline(resources, caching=caching, retries=True)

    @dsl.pipeline(name=PIPELINE, description=DESCRIPTION)
    def grpo(config: dict) -> str:
        """Check, import, prepare, smoke test, train, merge, evaluate twice, judge, register."""
        result: str = steps.pipeline_func(**_checked_sections(config, resources, steps))
        return result

    return grpo


def build_cluster_sweep(sweep: Sweep, *, caching: bool = True) -> Any:
    """A sweep's pipeline with images and resources set.

    Args:
        sweep: from cluster_config.py.
        caching: whether pure steps may be answered from a cache.

    Returns:
        The KFP pipeline, the config and the points its parameters.
    """
    resources = sweep.base.resources
    steps = build_sweep(resources, parallel=sweep.parallel, varied=sweep.varied(), caching=caching, retries=True)

    @dsl.pipeline(name=SWEEP_PIPELINE, description="Train every point of a grid, judge and register the best one.")
    def grpo_sweep(config: dict, points: list) -> str:
        """Check, import, prepare, smoke test, train each point, choose, merge, evaluate twice, judge, register."""
        result: str = steps.pipeline_func(points=points, **_checked_sections(config, resources, steps))
        return result

    return grpo_sweep


def _checked_sections(config: Any, resources: ResourcesConfig, steps: Any) -> dict[str, Any]:
    """The first step, and what it hands on to the others: the pipeline's parameters that are sections."""
    place = placer(resources, caching=False, retries=True)
    checked = place(check_prerequisites(config=config, resources=resources.to_json()), NAME, "check prerequisites")
    return {name: checked.outputs[name] for name in steps.component_spec.inputs if name != "points"}


def compile_sweep_for_cluster(sweep: Sweep, output: Path, *, caching: bool = True) -> None:
    """Write a sweep's pipeline as KFP's two documents, config and points as its parameters' defaults.

    Args:
        sweep: from cluster_config.py.
        output: the file to write, .yaml.
        caching: whether pure steps may be answered from a cache.
    """
    pipeline = build_cluster_sweep(sweep, caching=caching)
    _set_config(pipeline, sweep.base)
    points = _parameter(pipeline, "points")
    points.default_value.list_value.extend(points_parameter(sweep))
    compiler.Compiler().compile(pipeline, package_path=str(output))


def compile_for_cluster(config: RunConfig, output: Path, *, caching: bool = True) -> None:
    """Write the pipeline as KFP's two documents, the config as its parameter's default.

    Args:
        config: from cluster_config.py.
        output: the file to write, .yaml.
        caching: whether pure steps may be answered from a cache.
    """
    compiler.Compiler().compile(_with_config(config, caching=caching), package_path=str(output))


def compile_resources(config: RunConfig, output: Path, *, namespace: str, version: str, caching: bool = True) -> None:
    """Write the pipeline as Pipeline and PipelineVersion resources, for GitOps.

    Args:
        config: from cluster_config.py.
        output: the file to write, .yaml.
        namespace: of the resources: the one KFP is installed in.
        version: name of the PipelineVersion.
        caching: whether pure steps may be answered from a cache.
    """
    compiler.Compiler().compile(
        _with_config(config, caching=caching),
        package_path=str(output),
        kubernetes_manifest_format=True,
        kubernetes_manifest_options=KubernetesManifestOptions(
            pipeline_name=PIPELINE,
            pipeline_version_name=version,
            namespace=namespace,
            include_pipeline_manifest=True,
        ),
    )


def pipeline_parameters(config: RunConfig) -> dict[str, Any]:
    """The pipeline's parameters by name, as KFP's API takes them: the config without what is compiled in.

    Args:
        config: from cluster_config.py.
    """
    return {"config": config.model_dump(mode="json", exclude={"resources"})}


def _with_config(config: RunConfig, *, caching: bool) -> Any:
    """The pipeline with the config as its parameter's default."""
    pipeline = build_cluster_pipeline(config.resources, caching=caching)
    _set_config(pipeline, config)
    return pipeline


def _set_config(pipeline: Any, config: RunConfig) -> None:
    """Make the config the parameter's default (KFP's own way of setting one knows no null)."""
    _parameter(pipeline, "config").default_value.struct_value.update(pipeline_parameters(config)["config"])


def _parameter(pipeline: Any, name: str) -> Any:
    """A parameter of the compiled pipeline, one that may be left out."""
    parameter = pipeline.component_spec.implementation.graph.root.input_definitions.parameters[name]
    parameter.is_optional = True
    return parameter

"""The one pipeline: which step feeds which, and what each asks of the platform.

The same graph is run by KFP's local runners and compiled for a cluster (runners.py, `grpo compile`). Between steps
travel references (`<uri>@sha256:<hex>`) as parameters: KFP's caches key on parameter values, so a hit is a hit on
content, wherever the graph runs. Train and register have effects and are never cached by KFP: they find their own
earlier results. There are no conditions: a step that must stop the run fails.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from kfp import compiler, dsl

from components.evaluate_holdout.component import evaluate_holdout
from components.import_model.component import import_model
from components.judge_candidate.component import judge_candidate
from components.merge_lora.component import merge_lora
from components.prepare_dataset.component import prepare_dataset
from components.register_model.component import register_model
from components.smoke_test_rewards.component import smoke_test_rewards
from components.train_grpo.component import train_grpo
from pipeline.fingerprint import code_fingerprint
from pipeline.pods import ask_kubernetes
from pipeline.resources import ResourcesConfig

IMAGE_OF = {
    "import_model": "train",
    "prepare_dataset": "data",
    "smoke_test_rewards": "evaluate",
    "train_grpo": "train",
    "merge_lora": "merge",
    "evaluate_holdout": "evaluate",
    "judge_candidate": "evaluate",
    "register_model": "registry",
    "choose_winner": "registry",
    "check_prerequisites": "evaluate",
}
"""Image family of each step."""

UNCACHED = frozenset({"train_grpo", "register_model", "choose_winner"})
"""Steps with effects."""


def placer(resources: ResourcesConfig, *, caching: bool, retries: bool) -> Callable[[Any, str, str], Any]:
    """What sets image, resources, caching and retries of a task.

    Args:
        resources: the config section.
        caching: whether pure steps may be answered from a cache.
        retries: whether a cluster runs it, so that failed steps are started again and pods have settings of their own.

    Returns:
        A function of the task, the step's name and its label, which returns the task.
    """

    def place(task: Any, step: str, label: str) -> Any:
        """Set what a step asks of the platform."""
        wants = resources.pod(step)
        task.set_display_name(label)
        task.set_container_image(getattr(resources.images, IMAGE_OF[step]))
        task.set_caching_options(enable_caching=caching and wants.cache and step not in UNCACHED)
        task.set_cpu_limit(wants.cpu).set_memory_limit(wants.memory)
        if wants.gpus:
            task.set_accelerator_type(wants.gpu_type).set_accelerator_limit(wants.gpus)
        if retries:
            ask_kubernetes(task, resources, step)
        return task

    return place


def build_pipeline(resources: ResourcesConfig, *, caching: bool = True, retries: bool = True) -> Any:
    """The pipeline with images and resources set.

    Args:
        resources: the config section.
        caching: whether pure steps may be answered from a cache.
        retries: whether the platform may start a failed step again.

    Returns:
        The KFP pipeline.
    """

    place = placer(resources, caching=caching, retries=retries)

    @dsl.pipeline(name="grpo", description="Fine-tune a language model with GRPO, judge it on a holdout, register it.")
    def grpo(
        run: str,
        model: str,
        data: str,
        contract: str,
        rewards: str,
        smoke_test: str,
        sampling: str,
        training: str,
        lora: str,
        stages: str,
        merge: str,
        evaluation: str,
        gates: str,
        registry: str,
        tracking: str,
        store: str,
        config: str,
        model_inputs: str,
        data_inputs: str,
    ) -> str:
        """Import, prepare, smoke test, train, merge, evaluate twice, judge, register."""
        base, dataset, holdout = import_and_prepare(
            place,
            model=model,
            data=data,
            contract=contract,
            store=store,
            model_inputs=model_inputs,
            data_inputs=data_inputs,
        )
        smoke_report = place_smoke_test(
            place,
            dataset=dataset,
            base=base,
            contract=contract,
            rewards=rewards,
            smoke_test=smoke_test,
            sampling=sampling,
            stages=stages,
            store=store,
        )
        trained = place(
            train_grpo(
                run=run,
                model=model,
                base=base,
                dataset=dataset,
                smoke_test=smoke_report,
                contract=contract,
                rewards=rewards,
                training=training,
                lora=lora,
                stages=stages,
                tracking=tracking,
                store=store,
                code=code_fingerprint("train_grpo"),
            ),
            "train_grpo",
            "train",
        )
        return after_training(
            place,
            base=base,
            dataset=dataset,
            holdout=holdout,
            adapter=trained.outputs["adapter"],
            run_id=trained.outputs["run_id"],
            smoke_report=smoke_report,
            contract=contract,
            rewards=rewards,
            merge=merge,
            evaluation=evaluation,
            gates=gates,
            registry=registry,
            tracking=tracking,
            store=store,
            config=config,
        )

    return grpo


def import_and_prepare(
    place: Callable[[Any, str, str], Any],
    *,
    model: Any,
    data: Any,
    contract: Any,
    store: Any,
    model_inputs: Any,
    data_inputs: Any,
) -> tuple[Any, Any, Any]:
    """The graph's first two steps: import and prepare.

    Args:
        place: from `placer`.
        model: the section; like all that follow, a pipeline parameter or a step's output.
        data: the section.
        contract: the section.
        store: the section.
        model_inputs: fingerprint of a local base model.
        data_inputs: fingerprint of local data files.

    Returns:
        References of the base model, the prepared dataset and the holdout.
    """
    base = place(
        import_model(model=model, store=store, inputs=model_inputs, code=code_fingerprint("import_model")),
        "import_model",
        "import model",
    ).output
    prepared = place(
        prepare_dataset(
            data=data,
            contract=contract,
            base=base,
            store=store,
            inputs=data_inputs,
            code=code_fingerprint("prepare_dataset"),
        ),
        "prepare_dataset",
        "prepare dataset",
    )
    return base, prepared.outputs["dataset"], prepared.outputs["holdout"]


def place_smoke_test(
    place: Callable[[Any, str, str], Any],
    *,
    dataset: Any,
    base: Any,
    contract: Any,
    rewards: Any,
    smoke_test: Any,
    sampling: Any,
    stages: Any,
    store: Any,
) -> Any:
    """The smoke test's place in the graph.

    Args:
        place: from `placer`.
        dataset: reference of the prepared dataset; like all that follow, a pipeline parameter or a step's output.
        base: reference of the base model.
        contract: the section.
        rewards: the section.
        smoke_test: the section.
        sampling: how training samples.
        stages: the section.
        store: the section.

    Returns:
        Reference of the report.
    """
    return place(
        smoke_test_rewards(
            dataset=dataset,
            base=base,
            contract=contract,
            rewards=rewards,
            smoke_test=smoke_test,
            sampling=sampling,
            stages=stages,
            store=store,
            code=code_fingerprint("smoke_test_rewards"),
        ),
        "smoke_test_rewards",
        "smoke test rewards",
    ).outputs["Output"]


def after_training(
    place: Callable[[Any, str, str], Any],
    *,
    base: Any,
    dataset: Any,
    holdout: Any,
    adapter: Any,
    run_id: Any,
    smoke_report: Any,
    contract: Any,
    rewards: Any,
    merge: Any,
    evaluation: Any,
    gates: Any,
    registry: Any,
    tracking: Any,
    store: Any,
    config: Any,
) -> Any:
    """The graph from a trained adapter on: merge, evaluate twice, judge, register.

    Args:
        place: from `placer`.
        base: reference of the base model; like all that follow, a pipeline parameter or a step's output.
        dataset: reference of the prepared dataset.
        holdout: reference of the holdout.
        adapter: reference of the adapter.
        run_id: the training's MLflow run.
        smoke_report: reference of the smoke test's report.
        contract: the section.
        rewards: the section.
        merge: the section.
        evaluation: the section.
        gates: the section.
        registry: the section.
        tracking: the section.
        store: the section.
        config: the whole config.

    Returns:
        What register_model hands on.
    """
    merged = place(
        merge_lora(
            base=base,
            adapter=adapter,
            contract=contract,
            merge=merge,
            store=store,
            code=code_fingerprint("merge_lora"),
        ),
        "merge_lora",
        "merge",
    ).output
    evaluations = {}
    for label, reference in (("base", base), ("candidate", merged)):
        evaluations[label] = place(
            evaluate_holdout(
                model=reference,
                holdout=holdout,
                contract=contract,
                evaluation=evaluation,
                rewards=rewards,
                store=store,
                code=code_fingerprint("evaluate_holdout"),
            ),
            "evaluate_holdout",
            f"evaluate {label}",
        ).outputs["Output"]
    verdict = place(
        judge_candidate(
            base_evaluation=evaluations["base"],
            candidate_evaluation=evaluations["candidate"],
            dataset=dataset,
            gates=gates,
            store=store,
            code=code_fingerprint("judge_candidate"),
        ),
        "judge_candidate",
        "judge",
    ).output
    registered = place(
        register_model(
            run_id=run_id,
            verdict=verdict,
            base_evaluation=evaluations["base"],
            candidate_evaluation=evaluations["candidate"],
            base=base,
            merged=merged,
            adapter=adapter,
            dataset=dataset,
            holdout=holdout,
            smoke_test=smoke_report,
            config=config,
            registry=registry,
            tracking=tracking,
            store=store,
            code=code_fingerprint("register_model"),
        ),
        "register_model",
        "register",
    )
    return registered.outputs["Output"]


def compile_pipeline(pipeline: Any, arguments: dict[str, str], output: Path) -> None:
    """Write the pipeline as KFP's YAML, the config as its parameters' defaults.

    Args:
        pipeline: from `build_pipeline`.
        arguments: from pipeline.arguments.
        output: the file to write.
    """
    compile_to: Callable[..., None] = compiler.Compiler().compile
    compile_to(pipeline_func=pipeline, package_path=str(output), pipeline_parameters=arguments)

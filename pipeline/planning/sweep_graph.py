"""The graph of a sweep: the one pipeline (graph.py) with a training branch a point, of which the best goes on.

Import and preparation run once; each point trains (and tests its rewards, where points differ in them); choose_winner
ranks them on validation rows; only the winner is merged, meets the holdout, is judged and registered.
"""

from collections.abc import Collection
from typing import Any, NamedTuple

from kfp import dsl

from components.choose_winner.component import choose_winner
from components.train_grpo.component import train_grpo
from pipeline.fingerprint import code_fingerprint
from pipeline.graph import after_training, import_and_prepare, place_smoke_test, placer
from pipeline.resources import ResourcesConfig


class Winner(NamedTuple):
    """What choose_winner hands on."""

    adapter: str
    run_id: str
    rewards: str
    smoke_test: str
    config: str


TESTED = frozenset({"rewards", "sampling", "stages"})
"""What the smoke test looks at: points that differ in one of these need a test of their own."""


def build_sweep(
    resources: ResourcesConfig, *, parallel: int, varied: Collection[str], caching: bool = True, retries: bool = True
) -> Any:
    """The sweep's pipeline with images and resources set.

    Args:
        resources: the config section.
        parallel: points trained at once.
        varied: the sections that points have of their own; they share the others.
        caching: whether pure steps may be answered from a cache.
        retries: whether the platform may start a failed step again.

    Returns:
        The KFP pipeline.
    """
    place = placer(resources, caching=caching, retries=retries)
    own_tests = not TESTED.isdisjoint(varied)

    @dsl.pipeline(name="train-points", description="Train every point of a grid and choose the best.")
    def train_points(
        points: list,
        model: str,
        base: str,
        dataset: str,
        report: str,
        contract: str,
        rewards: str,
        smoke_test: str,
        sampling: str,
        training: str,
        lora: str,
        stages: str,
        tracking: str,
        store: str,
        config: str,
    ) -> Winner:
        """A graph of its own: KFP's local runner gives a loop its graph's inputs, not what tasks beside it made."""
        with dsl.ParallelFor(items=points, parallelism=parallel) as point:
            shared = {"rewards": rewards, "sampling": sampling, "training": training, "lora": lora, "stages": stages}
            own = {name: getattr(point, name) if name in varied else value for name, value in shared.items()}
            passed = report
            if own_tests:
                passed = place_smoke_test(
                    place,
                    dataset=dataset,
                    base=base,
                    contract=contract,
                    rewards=own["rewards"],
                    smoke_test=smoke_test,
                    sampling=own["sampling"],
                    stages=own["stages"],
                    store=store,
                )
            trained = place(
                train_grpo(
                    run=point.run,
                    model=model,
                    base=base,
                    dataset=dataset,
                    smoke_test=passed,
                    contract=contract,
                    rewards=own["rewards"],
                    training=own["training"],
                    lora=own["lora"],
                    stages=own["stages"],
                    tracking=tracking,
                    store=store,
                    code=code_fingerprint("train_grpo"),
                    stop_fails=False,
                ),
                "train_grpo",
                "train",
            )
        winner = place(
            choose_winner(
                adapters=dsl.Collected(trained.outputs["adapter"]),
                runs=dsl.Collected(trained.outputs["run_id"]),
                smoke_tests=dsl.Collected(passed) if own_tests else [],
                points=points,
                config=config,
                tracking=tracking,
                store=store,
                code=code_fingerprint("choose_winner"),
            ),
            "choose_winner",
            "choose winner",
        )
        return Winner(**{name: winner.outputs[name] for name in Winner._fields})

    @dsl.pipeline(name="grpo-sweep", description="Train every point of a grid, judge and register the best one.")
    def grpo_sweep(
        points: list,
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
        """Import, prepare, smoke test, train each point, choose, merge, evaluate twice, judge, register."""
        base, dataset, holdout = import_and_prepare(
            place,
            model=model,
            data=data,
            contract=contract,
            store=store,
            model_inputs=model_inputs,
            data_inputs=data_inputs,
        )
        tested = None
        if not own_tests:
            tested = place_smoke_test(
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
        winner = train_points(
            points=points,
            model=model,
            base=base,
            dataset=dataset,
            report=dataset if own_tests else tested,
            contract=contract,
            rewards=rewards,
            smoke_test=smoke_test,
            sampling=sampling,
            training=training,
            lora=lora,
            stages=stages,
            tracking=tracking,
            store=store,
            config=config,
        )
        return after_training(
            place,
            base=base,
            dataset=dataset,
            holdout=holdout,
            adapter=winner.outputs["adapter"],
            run_id=winner.outputs["run_id"],
            smoke_report=winner.outputs["smoke_test"] if own_tests else tested,
            contract=contract,
            rewards=winner.outputs["rewards"] if "rewards" in varied else rewards,
            merge=merge,
            evaluation=evaluation,
            gates=gates,
            registry=registry,
            tracking=tracking,
            store=store,
            config=winner.outputs["config"],
        )

    return grpo_sweep

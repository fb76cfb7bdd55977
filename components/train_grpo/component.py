"""The Kubeflow face of train_grpo: names and types, one call. graph.py sets image and resources."""

from typing import NamedTuple

from kfp import dsl


@dsl.component(base_image="python", install_kfp_package=False)
def train_grpo(
    run: str,
    model: str,
    base: str,
    dataset: str,
    smoke_test: str,
    contract: str,
    rewards: str,
    training: str,
    lora: str,
    stages: str,
    tracking: str,
    store: str,
    code: str,
    stop_fails: bool = True,
) -> NamedTuple("TrainedAdapter", [("adapter", str), ("run_id", str)]):  # type: ignore[valid-type]
    """Train with GRPO, or find the same training done, or go on with it.

    Args:
        run: the run section, JSON.
        model: the model section, JSON.
        base: reference of the base model.
        dataset: reference of the prepared dataset.
        smoke_test: reference of the passed smoke test's report; nothing is trained without one.
        contract: the contract section, JSON.
        rewards: the rewards section, JSON.
        training: the training section, JSON.
        lora: the lora section, JSON (null trains all weights).
        stages: the stages section, JSON.
        tracking: the tracking section, JSON.
        store: the store section, JSON.
        code: fingerprint of the step's code.
        stop_fails: whether a guard that ends the training ends the run; in a sweep it ends one point of it.

    Returns:
        Reference of the adapter (in a sweep, instead, why a guard ended the training), and the MLflow run's id.
    """
    from typing import NamedTuple

    from components.steps import step, work_directory

    with step("train_grpo"):
        from components.storage.config import StoreConfig
        from components.storage.store import open_store
        from components.train_grpo.train import inputs_from_sections, train_or_say

        adapter, run_id = train_or_say(
            inputs_from_sections(
                run=run,
                model=model,
                base=base,
                dataset=dataset,
                contract=contract,
                rewards=rewards,
                training=training,
                lora=lora,
                stages=stages,
                tracking=tracking,
                code=code,
            ),
            open_store(StoreConfig.from_json(store)),
            work=work_directory("train_grpo"),
            stop_fails=stop_fails,
        )
    TrainedAdapter = NamedTuple("TrainedAdapter", [("adapter", str), ("run_id", str)])
    return TrainedAdapter(adapter, run_id)

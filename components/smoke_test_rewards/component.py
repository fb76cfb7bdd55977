"""The Kubeflow face of smoke_test_rewards: names and types, one call. graph.py sets image and resources."""

from kfp import dsl


@dsl.component(base_image="python", install_kfp_package=False)
def smoke_test_rewards(
    dataset: str,
    base: str,
    contract: str,
    rewards: str,
    smoke_test: str,
    sampling: str,
    stages: str,
    store: str,
    code: str,
    report: dsl.Output[dsl.HTML],
) -> str:
    """Test the rewards on traps and on samples of the base model; a failure ends the run before anything is trained.

    Args:
        dataset: reference of the prepared dataset.
        base: reference of the base model.
        contract: the contract section, JSON.
        rewards: the rewards section, JSON.
        smoke_test: the smoke_test section, JSON.
        sampling: how training samples (G, temperature, lengths), JSON.
        stages: the stages section, JSON.
        store: the store section, JSON.
        code: fingerprint of the step's code; part of the cache key.
        report: the findings as a page.

    Returns:
        Reference of the report.
    """
    from components.steps import step, work_directory

    with step("smoke_test_rewards"):
        from pathlib import Path

        from components.smoke_test_rewards.sections import run_on_sections

        return run_on_sections(
            dataset=dataset,
            base=base,
            contract=contract,
            rewards=rewards,
            smoke_test=smoke_test,
            sampling=sampling,
            store=store,
            work=work_directory("smoke_test_rewards"),
            page=Path(report.path),
            code=code,
            stages=stages,
        )

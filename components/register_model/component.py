"""The Kubeflow face of register_model: names and types, one call. graph.py sets image and resources."""

from kfp import dsl


@dsl.component(base_image="python", install_kfp_package=False)
def register_model(
    run_id: str,
    verdict: str,
    base_evaluation: str,
    candidate_evaluation: str,
    base: str,
    merged: str,
    adapter: str,
    dataset: str,
    holdout: str,
    smoke_test: str,
    config: str,
    registry: str,
    tracking: str,
    store: str,
    code: str,
    report: dsl.Output[dsl.HTML],
) -> str:
    """Write the evaluation into the MLflow run, and register the model when the verdict is pass.

    Args:
        run_id: the training's MLflow run.
        verdict: reference of the verdict.
        base_evaluation: reference of the base model's evaluation.
        candidate_evaluation: reference of the merged model's evaluation.
        base: reference of the base model.
        merged: reference of the merged model.
        adapter: reference of the adapter.
        dataset: reference of the prepared dataset.
        holdout: reference of the holdout.
        smoke_test: reference of the smoke test's report.
        config: the whole run config, JSON (kept with the run, to reproduce it).
        registry: the registry section, JSON.
        tracking: the tracking section, JSON.
        store: the store section, JSON.
        code: fingerprint of the step's code.
        report: the run's report as a page.

    Returns:
        `name/version` of the registered model, or an empty text when nothing was registered.
    """
    from components.steps import step, work_directory

    with step("register_model"):
        from pathlib import Path

        from components.register_model.inputs import RegistrationInputs
        from components.register_model.register_model import register_model

        return register_model(
            RegistrationInputs.from_sections(
                run_id=run_id,
                verdict=verdict,
                base_evaluation=base_evaluation,
                candidate_evaluation=candidate_evaluation,
                base=base,
                merged=merged,
                adapter=adapter,
                dataset=dataset,
                holdout=holdout,
                smoke_test=smoke_test,
                config=config,
                registry=registry,
                tracking=tracking,
                store=store,
            ),
            work=work_directory("register_model"),
            page=Path(report.path),
        )

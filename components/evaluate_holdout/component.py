"""The Kubeflow face of evaluate_holdout: names and types, one call. Run for base and merged model."""

from kfp import dsl


@dsl.component(base_image="python", install_kfp_package=False)
def evaluate_holdout(
    model: str,
    holdout: str,
    contract: str,
    evaluation: str,
    rewards: str,
    store: str,
    code: str,
    metrics: dsl.Output[dsl.Metrics],
) -> str:
    """Generate on the holdout and score the completions.

    Args:
        model: reference of the model to evaluate.
        holdout: reference of the holdout.
        contract: the contract section, JSON.
        evaluation: the evaluation section, JSON.
        rewards: the rewards section, JSON.
        store: the store section, JSON.
        code: fingerprint of the step's code; part of the cache key.
        metrics: the main figures, for the KFP UI.

    Returns:
        Reference of the evaluation.
    """
    from components.steps import emit, step, work_directory

    with step("evaluate_holdout"):
        import json
        from pathlib import Path

        from components.contract import build_contract
        from components.contract.config import ContractConfig
        from components.evaluate_holdout.config import EvaluationConfig
        from components.evaluate_holdout.evaluate_holdout import evaluate_holdout as run
        from components.rewards.config import RewardsConfig
        from components.storage.config import StoreConfig
        from components.storage.references import Reference
        from components.storage.store import fetch, open_store

        subject = "candidate" if "/merged/" in model else "base"
        emit({"step": "evaluate_holdout", "event": "subject", "subject": subject})
        work = work_directory("evaluate_holdout")
        place = StoreConfig.from_json(store)
        evaluated = run(
            fetch(model, work / "cache", config=place),
            fetch(holdout, work / "cache", config=place),
            build_contract(ContractConfig.from_json(contract)),
            EvaluationConfig.from_json(evaluation),
            RewardsConfig.from_json(rewards),
            open_store(place),
            work=work,
            model_digest=Reference.parse(model).digest,
            code=code,
        )
        for name, value in evaluated.headline().items():
            metrics.log_metric(name, value)
        # KFP's local cache takes an artifact without a file for a missing one, and would never reuse the step.
        Path(metrics.path).write_text(json.dumps(evaluated.headline()), encoding="utf-8")
    return str(evaluated.reference)

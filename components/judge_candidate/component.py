"""The Kubeflow face of judge_candidate: names and types, one call. graph.py sets image and resources."""

from kfp import dsl


@dsl.component(base_image="python", install_kfp_package=False)
def judge_candidate(
    base_evaluation: str, candidate_evaluation: str, dataset: str, gates: str, store: str, code: str
) -> str:
    """Compare candidate and base row by row and hold the candidate to the gates.

    Args:
        base_evaluation: reference of the base model's evaluation.
        candidate_evaluation: reference of the merged model's evaluation.
        dataset: reference of the prepared dataset (no holdout row may be in its training split).
        gates: the gates section, JSON.
        store: the store section, JSON.
        code: fingerprint of the step's code; part of the cache key.

    Returns:
        Reference of the verdict.
    """
    from components.steps import step, work_directory

    with step("judge_candidate"):
        from components.judge_candidate.config import GatesConfig
        from components.judge_candidate.judge_candidate import judge_candidate as run
        from components.storage.config import StoreConfig
        from components.storage.store import fetch, open_store

        work = work_directory("judge_candidate")
        place = StoreConfig.from_json(store)
        judged = run(
            fetch(base_evaluation, work / "cache", config=place),
            fetch(candidate_evaluation, work / "cache", config=place),
            GatesConfig.from_json(gates),
            open_store(place),
            dataset_directory=fetch(dataset, work / "cache", config=place),
            work=work,
            code=code,
        )
    return str(judged.reference)

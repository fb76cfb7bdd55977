"""The Kubeflow face of choose_winner: names and types, one call. sweep_graph.py sets image and resources."""

from typing import NamedTuple

from kfp import dsl


@dsl.component(base_image="python", install_kfp_package=False)
def choose_winner(
    adapters: list,
    runs: list,
    smoke_tests: list,
    points: list,
    config: str,
    tracking: str,
    store: str,
    code: str,
) -> NamedTuple(  # type: ignore[valid-type]
    "Winner", [("adapter", str), ("run_id", str), ("rewards", str), ("smoke_test", str), ("config", str)]
):
    """Choose the training of a sweep that did best on validation rows; write the leader board to MLflow.

    Args:
        adapters: reference of each point's adapter, or why its training stopped.
        runs: MLflow run of each point.
        smoke_tests: reference of each point's smoke test; empty when all share one.
        points: the grid: label of each point, and the sections it has of its own.
        config: the run config the points vary, JSON.
        tracking: the tracking section, JSON.
        store: the store section, JSON.
        code: fingerprint of the step's code.

    Returns:
        The winner's adapter, MLflow run, rewards section, smoke test and whole config.
    """
    from typing import NamedTuple

    from components.steps import step, work_directory

    with step("choose_winner"):
        from components.choose_winner.choose_winner import choose_winner as choose

        winner = choose(
            adapters,
            runs,
            smoke_tests,
            points,
            config=config,
            tracking=tracking,
            store=store,
            work=work_directory("choose_winner"),
        )
    Winner = NamedTuple(
        "Winner", [("adapter", str), ("run_id", str), ("rewards", str), ("smoke_test", str), ("config", str)]
    )
    return Winner(winner.adapter, winner.run_id, winner.rewards, winner.smoke_test, winner.config)

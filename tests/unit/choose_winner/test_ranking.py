"""The leader board: best on validation rows first, what a guard stopped last, and nothing at all is a failure."""

import json

import pytest

from components.choose_winner.choose_winner import Entry, choose_winner, rank
from components.errors import GateFailedError
from components.storage.store import open_store


def entry(index, accuracy, compliance=0.5, seconds=10.0, stopped=""):
    return Entry(index, f"point {index}", accuracy, compliance, 10, seconds, f"run{index}", stopped)


def order(*entries):
    return [found.index for found in rank(entries)]


def test_accuracy_then_compliance_then_time_decide():
    assert order(entry(0, 0.5), entry(1, 0.7), entry(2, 0.5, compliance=0.6)) == [1, 2, 0]
    assert order(entry(0, 0.5, seconds=20.0), entry(1, 0.5, seconds=10.0)) == [1, 0]


def test_equal_points_stay_in_the_grids_order():
    assert order(entry(0, 0.5), entry(1, 0.5)) == [0, 1]


def test_a_stopped_training_comes_last_even_behind_zero():
    assert order(entry(0, None, stopped="nan"), entry(1, 0.0)) == [1, 0]


def sections(learning_rate):
    return {
        "label": f"training.learning_rate={learning_rate}",
        "run": json.dumps({"name": "sweep", "seed": 1}),
        "sampling": json.dumps({"temperature": 1.0}),
        "training": json.dumps({"learning_rate": learning_rate}),
    }


def choose(tmp_path, *accuracies):
    from mlflow import MlflowClient

    store = open_store(str(tmp_path / "store"))
    tracking = f"sqlite:///{tmp_path / 'mlflow.db'}"
    client = MlflowClient(tracking)
    experiment = client.create_experiment("grpo", artifact_location=(tmp_path / "artifacts").as_uri())
    adapters, runs = [], []
    for index, accuracy in enumerate(accuracies):
        runs.append(client.create_run(experiment).info.run_id)
        if accuracy is None:
            adapters.append("training stopped: loss became nan")
            continue
        folder = tmp_path / f"adapter{index}"
        folder.mkdir()
        record = {"validation": {"validation/accuracy_strict": accuracy}, "chosen_step": 5, "seconds": 1.0}
        (folder / "training.json").write_text(json.dumps(record))
        adapters.append(str(store.put(folder, f"training/{index}/adapter", provenance={})))
    points = [sections(10.0**-index) for index in range(len(accuracies))]
    base = {"run": {"name": "base", "seed": 1}, "training": {}, "lora": {"r": 8}, "data": {"kept": True}}
    winner = choose_winner(
        adapters, runs, [], points, config=json.dumps(base), tracking=json.dumps({"uri": tracking}),
        store=json.dumps({"uri": str(tmp_path / "store")}), work=tmp_path / "work",
    )  # fmt: skip
    return winner, adapters, runs, client


def test_the_best_goes_on_with_its_own_sections_under_one_parent_run(tmp_path):
    winner, adapters, runs, client = choose(tmp_path, 0.2, None, 0.6)
    assert (winner.adapter, winner.run_id) == (adapters[2], runs[2])
    config = json.loads(winner.config)
    assert config["training"] == {"learning_rate": 0.01}
    assert (config["lora"], config["data"]) == ({"r": 8}, {"kept": True})
    assert set(config) == {"run", "training", "lora", "data"}
    assert winner.rewards == ""
    parents = {client.get_run(run).data.tags["mlflow.parentRunId"] for run in runs}
    assert len(parents) == 1
    board = json.loads((tmp_path / "artifacts" / parents.pop() / "artifacts" / "leaderboard.json").read_text())
    assert board["accuracy"] == [0.6, 0.2, None]
    assert board["stopped"][2] == "training stopped: loss became nan"


def test_a_sweep_of_which_nothing_was_trained_fails(tmp_path):
    with pytest.raises(GateFailedError, match="no point of the sweep was trained to the end"):
        choose(tmp_path, None, None)

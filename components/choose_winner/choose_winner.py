"""The end of a sweep: rank the trainings by their check on validation rows, and hand the best one on.

Called by component.py. Gives the sweep one parent run in MLflow with the leader board; the trainings' runs become its
children. A point whose training a guard stopped is on the board, last, with the reason. Refuses a sweep of which no
point was trained. The holdout is not read: only the winner meets it, in the steps after this one.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from components.errors import GateFailedError
from components.sections import content_hash
from components.steps import emit
from components.storage.config import StoreConfig
from components.storage.store import fetch
from components.tracking.config import TrackingConfig
from components.tracking.runs import connect, end_run, log_metrics, log_params, open_run, set_tags

log = logging.getLogger(__name__)

ACCURACY = "validation/accuracy_strict"
COMPLIANCE = "validation/format_compliance"

PARENT_TAG = "mlflow.parentRunId"
"""MLflow's own tag: its UI nests a run that has it under the run it names."""


@dataclass(frozen=True)
class Entry:
    """One point of the grid on the leader board.

    Attributes:
        index: its place in the grid.
        label: what it varies.
        accuracy: strict accuracy on validation rows; None when it was not trained to the end.
        compliance: format compliance on them.
        step: the step that was chosen.
        seconds: training time.
        run_id: its MLflow run; empty when it stopped before one was known.
        stopped: why it was not trained to the end; empty when it was.
    """

    index: int
    label: str
    accuracy: float | None
    compliance: float | None
    step: int
    seconds: float
    run_id: str
    stopped: str


@dataclass(frozen=True)
class Winner:
    """What goes on.

    Attributes:
        adapter: reference of its adapter.
        run_id: its MLflow run.
        rewards: its rewards section, JSON; empty when all points share one.
        smoke_test: reference of its smoke test; empty when all points share one.
        config: the whole config of its point, JSON.
        board: all points, best first.
    """

    adapter: str
    run_id: str
    rewards: str
    smoke_test: str
    config: str
    board: tuple[Entry, ...]


def choose_winner(
    adapters: Sequence[str],
    runs: Sequence[str],
    smoke_tests: Sequence[str],
    points: Sequence[Mapping[str, str]],
    *,
    config: str,
    tracking: str,
    store: str,
    work: Path,
) -> Winner:
    """Rank the points and hand on the best.

    Args:
        adapters: reference of each point's adapter, or why its training stopped.
        runs: MLflow run of each point.
        smoke_tests: reference of each point's smoke test; empty when all share one.
        points: label of each point, and the sections (JSON) it has of its own.
        config: the run config the points vary, JSON.
        tracking: the tracking section, JSON.
        store: the store section, JSON.
        work: folder for downloads.

    Raises:
        GateFailedError: when no point was trained to the end.
    """
    options = StoreConfig.from_json(store)
    entries = [
        _entry(index, point["label"], adapter, run_id, options, work)
        for index, (point, adapter, run_id) in enumerate(zip(points, adapters, runs, strict=True))
    ]
    board = rank(entries)
    best = board[0]
    if best.accuracy is None:
        raise GateFailedError(f"no point of the sweep was trained to the end; {best.label}: {best.stopped}")
    point = points[best.index]
    whole = json.loads(config)
    whole.update({name: json.loads(point[name]) for name in point.keys() & whole.keys()})
    _write_board(board, points, config, TrackingConfig.from_json(tracking))
    emit(
        {
            "step": "choose_winner",
            "event": "leaderboard",
            "rows": [{name: value for name, value in asdict(entry).items() if name != "index"} for entry in board],
        }
    )
    return Winner(
        adapter=adapters[best.index],
        run_id=best.run_id,
        rewards=point.get("rewards", ""),
        smoke_test=smoke_tests[best.index] if smoke_tests else "",
        config=json.dumps(whole, sort_keys=True, separators=(",", ":")),
        board=tuple(board),
    )


def rank(entries: Sequence[Entry]) -> list[Entry]:
    """Best first: by accuracy in the format, then compliance, then training time; what stopped comes last.

    Args:
        entries: in the grid's order, which decides between equal ones.
    """
    return sorted(
        entries,
        key=lambda entry: (
            entry.accuracy is None,
            -(entry.accuracy or 0.0),
            -(entry.compliance or 0.0),
            entry.seconds,
            entry.index,
        ),
    )


def _entry(index: int, label: str, adapter: str, run_id: str, store: StoreConfig, work: Path) -> Entry:
    """One point's line, from the record beside its adapter."""
    if "@sha256:" not in adapter:
        return Entry(index, label, None, None, 0, 0.0, run_id, adapter or "not trained")
    record = json.loads((fetch(adapter, work / "cache", config=store) / "training.json").read_text(encoding="utf-8"))
    checked = record["validation"]
    return Entry(
        index,
        label,
        float(checked.get(ACCURACY, 0.0)),
        float(checked.get(COMPLIANCE, 0.0)),
        int(record.get("chosen_step", 0)),
        float(record["seconds"]),
        run_id,
        "",
    )


def _write_board(
    board: Sequence[Entry], points: Sequence[Mapping[str, str]], config: str, tracking: TrackingConfig
) -> None:
    """The parent run: grid, leader board, the winner's figures; the trainings' runs go under it."""
    client = connect(tracking)
    name = f"{json.loads(config)['run']['name']}-sweep"
    key = f"sweep-{content_hash([dict(point) for point in points], config)}"
    parent = open_run(client, tracking, name=name, key=key)
    best = board[0]
    log_params(client, parent.run_id, {"points": str(len(points)), "winner": best.label[:5000]})
    log_metrics(
        client,
        parent.run_id,
        {ACCURACY: best.accuracy, COMPLIANCE: best.compliance, "points": float(len(points))},
    )
    set_tags(client, parent.run_id, {"grpo.sweep": "parent", "grpo.winner": best.run_id})
    table = {column: [asdict(entry)[column] for entry in board] for column in asdict(best)}
    client.log_text(parent.run_id, json.dumps(table, indent=1), "leaderboard.json")
    for place, entry in enumerate(board, start=1):
        if entry.run_id:
            set_tags(client, entry.run_id, {PARENT_TAG: parent.run_id, "grpo.sweep.place": str(place)})
    end_run(client, parent.run_id, "FINISHED")
    log.info("leader board in MLflow run %s", parent.run_id)

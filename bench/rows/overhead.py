"""Row `overhead`: the quickstart whole, through the pipeline and as one plain script; imports counted apart.

Import time is what Python reports (PYTHONPROFILEIMPORTTIME, on for both), summed over all processes; "the rest" is the
wall time without it. The pipeline does more in that rest: it tests the rewards on samples, validates while training,
verifies the merge, judges, reports and registers. Training is shortened so that several pairs fit into some minutes.
"""

import json

from bench.measuring import Usage, import_packages
from bench.results import Result
from bench.rows.cached import TINY, grpo_run
from bench.session import Row, Session, Side, program, removed

STEPS = 30
WHOLE = f"the whole run, {STEPS} training steps"
GATES = (
    "gates.min_format_compliance=null",
    "gates.min_accuracy_gain=null",
    "gates.max_truncation=null",
    "gates.accuracy_margin=0.99",
)
"""So that a shortened training is registered too."""


def run(session: Session) -> None:
    """Measure."""
    steps = session.size(STEPS, 1)
    ours, peer = session.scratch / "ours", session.scratch / "peer"
    settings = TINY if session.tiny else (f"training.max_steps={steps}", *GATES)
    environment = {"PYTHONPROFILEIMPORTTIME": "1", "OMP_NUM_THREADS": "1"}

    def fresh() -> None:
        removed(ours)()
        ours.mkdir()

    def apart(figures: Usage) -> dict[str, float]:
        imports = figures.get("imports_s", 0.0)
        return {"start_up_s": round(imports, 3), "rest_s": round(figures["wall_s"] - imports, 3)}

    def steps_too(figures: Usage) -> dict[str, float]:
        (folder,) = (ours / "home" / "runs").iterdir()
        log = (folder / "run.log").read_text(encoding="utf-8", errors="replace")
        packages = import_packages(log)
        session.result.data["facts"]["seconds of imports in the steps, by package"] = dict(list(packages.items())[:12])
        figures["imports_s"] = figures.get("imports_s", 0.0) + sum(packages.values())
        return apart(figures) | step_seconds((folder / "events.jsonl").read_text(encoding="utf-8"))

    session.compare(
        WHOLE,
        {
            "script": Side(
                program("peers/quickstart_trl.py", peer, "--steps", steps),
                before=removed(peer),
                after=apart,
                environment=environment,
            ),
            "ours": Side(
                grpo_run(ours, *settings), before=fresh, after=steps_too, folder=session.scratch,
                environment=environment,
            ),
        },
        pairs=3,
    )  # fmt: skip


def asks(result: Result) -> None:
    """What was asked."""
    times = result.times(WHOLE, "script", "rest_s")
    result.ask("wall time without imports, ours over the script's", times, "<=", 1.1)


def step_seconds(events: str) -> dict[str, float]:
    """Seconds between a step's started and finished events, summed by step.

    Args:
        events: the run's events, one JSON object a line.
    """
    seconds: dict[str, float] = {}
    begun: dict[str, float] = {}
    for line in events.splitlines():
        event = json.loads(line)
        if event["event"] == "started":
            begun[event["step"]] = event["time"]
        elif event["event"] == "finished":
            name = f"{event['step']}_s"
            seconds[name] = round(seconds.get(name, 0.0) + event["time"] - begun[event["step"]], 2)
    return seconds


ROW = Row(
    name="overhead",
    work=f"the quickstart whole, {STEPS} training steps",
    peer="one plain TRL script: the same training, merge, two evaluations (peers/quickstart_trl.py)",
    ask="wall time without imports <= 1.10 x",
    run=run,
    asks=asks,
)

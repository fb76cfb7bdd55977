"""Row `steps-overhead`: what an empty step costs: the slope between one step and nine, one after the other."""

from bench.results import Result
from bench.session import Plot, Row, Session, Side, program, removed


def run(session: Session) -> None:
    """Measure."""
    _compare(session, "one step", 1)
    _compare(session, "nine steps", session.size(9, 2))
    if not session.tiny:
        _compare(session, "four steps", 4, growth=True)


def asks(result: Result) -> None:
    """What was asked."""
    seconds: dict[str, float] = {}
    for side in ("kfp", "ours"):
        first, last = (result.found(label, side, "wall_s") for label in ("one step", "nine steps"))
        if first and last:
            seconds[side] = round((last - first) / 8, 3)
    result.data["facts"]["seconds a step"] = seconds
    times = seconds["ours"] / seconds["kfp"] if len(seconds) == 2 and seconds["kfp"] else None
    result.ask("seconds of an empty step, ours over kfp's", times, "<=", 1.2)


def _compare(session: Session, label: str, count: int, *, growth: bool = False) -> None:
    folders = {side: session.scratch / side for side in ("kfp", "ours")}
    session.compare(
        label,
        {
            side: Side(
                program(f"{'peers' if side == 'kfp' else 'ours'}/empty_steps.py", count, folder),
                before=removed(folder),
                folder=session.scratch,
            )
            for side, folder in folders.items()
        },
        x=count,
        growth=growth,
    )


ROW = Row(
    name="steps-overhead",
    work="empty steps, one after the other",
    peer="KFP's own local runner, the same steps",
    ask="<= 1.2 x the peer's time a step",
    run=run,
    asks=asks,
    limits=(
        "Most of a step's time is imports, on both sides. Of what ours adds, the import of `components.steps` "
        "could be told apart (`python -X importtime`): a part, most of it `tempfile`, which only "
        "`work_directory` needs. Logging, the two events and KFP's cache, which is off for the peer, were not "
        "told apart; and the slope is of few runs on a busy machine."
    ),
    plots=(Plot("wall_s", "Time of a pipeline of empty steps", "steps", "seconds", log=False),),
)

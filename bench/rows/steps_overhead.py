"""Row `steps-overhead`: what an empty step costs: the slope between one step and nine, one after the other."""

from bench.session import Plot, Row, Session, Side, program, removed


def run(session: Session) -> None:
    """Measure."""
    few, many = session.size((1, 9), (1, 2))
    for count in (few, many):
        _compare(session, count)
    if not session.tiny:
        _compare(session, 4, growth=True)
    cases = {count: session.result.found(f"{count} steps") for count in (few, many)}
    first, last = cases[few], cases[many]
    if first is not None and last is not None:
        slope = {
            side: (last["medians"][side]["wall_s"] - first["medians"][side]["wall_s"]) / (many - few)
            for side in ("kfp", "ours")
        }
        session.result.data["facts"]["seconds a step"] = {side: round(value, 3) for side, value in slope.items()}
        session.result.ask("seconds of an empty step, ours over kfp's", slope["ours"] / slope["kfp"], "<=", 1.2)


def _compare(session: Session, count: int, *, growth: bool = False) -> None:
    folders = {side: session.scratch / side for side in ("kfp", "ours")}
    session.compare(
        f"{count} steps",
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
    plots=(Plot("wall_s", "Time of a pipeline of empty steps", "steps", "seconds", log=False),),
)

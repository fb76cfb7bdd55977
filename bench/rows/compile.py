"""Row `compile`: the pipeline compiled for one run, and for a sweep of 64 points."""

from bench.results import ROOT
from bench.session import Plot, Row, Session, Side, program

CONFIG = ROOT / "configs" / "quickstart.yaml"


def run(session: Session) -> None:
    """Measure."""
    points = session.size((1, 64), (1, 2))
    for count in points:
        session.compare(
            f"{count} points" if count > 1 else "one run",
            {"ours": Side(program("ours/compile_points.py", CONFIG, count, session.scratch))},
            x=count,
        )
    for count in session.size((4, 16), ()):
        session.compare(
            f"{count} points",
            {"ours": Side(program("ours/compile_points.py", CONFIG, count, session.scratch))},
            x=count,
            growth=True,
        )
    for case in session.result.data["cases"]:
        if not case["growth"] and case["medians"]:
            session.result.ask(
                f"{case['label']}: seconds beyond imports", case["medians"]["ours"]["compile_s"], "<=", 2
            )


ROW = Row(
    name="compile",
    work="the pipeline compiled for a cluster: one run, and a sweep of 64 points",
    peer="-",
    ask="<= 2 s beyond imports",
    run=run,
    plots=(Plot("compile_s", "Time to compile a sweep", "points", "seconds"),),
)

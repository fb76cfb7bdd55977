"""Row `compile`: the pipeline compiled for one run, and for a sweep of 64 points."""

from bench.results import ROOT, Result
from bench.session import Plot, Row, Session, Side, program

CONFIG = ROOT / "configs" / "quickstart.yaml"


def run(session: Session) -> None:
    """Measure."""
    _compare(session, "one run", 1)
    _compare(session, "a sweep", session.size(64, 2))
    for count in session.size((4, 16), ()):
        _compare(session, f"a sweep of {count}", count, growth=True)


def _compare(session: Session, label: str, count: int, *, growth: bool = False) -> None:
    side = Side(program("ours/compile_points.py", CONFIG, count, session.scratch))
    session.compare(label, {"ours": side}, x=count, growth=growth)


def asks(result: Result) -> None:
    """What was asked."""
    for label in ("one run", "a sweep"):
        result.ask(f"{label}: seconds beyond imports", result.found(label, "ours", "compile_s"), "<=", 2)


ROW = Row(
    name="compile",
    work="the pipeline compiled for a cluster: one run, and a sweep of 64 points",
    peer="-",
    ask="<= 2 s beyond imports",
    run=run,
    asks=asks,
    limits=(
        "What time there is goes into KFP's setters (each looks through the whole call stack), and into YAML "
        "read by PyYAML's Python code once a point."
    ),
    plots=(Plot("compile_s", "Time to compile a sweep", "points", "seconds", log=False),),
)

"""Row `prep`: rows of JSONL made into chat prompts with token counts, as Parquet.

Ours does all the step does (gold answers read, repeats and leaks looked for, three splits, checksums); the peer builds
prompts, counts tokens and filters. At a million rows the peer is left out: it would take a quarter of an hour.
"""

from bench.inputs.made import question_rows, smollm2
from bench.results import Result
from bench.session import Plot, Row, Session, Side, program, removed

SIZES = ("10,000 rows", "100,000 rows", "1,000,000 rows")


def run(session: Session) -> None:
    """Measure."""
    from components.contract import default_contract

    model = smollm2()
    sizes = session.size((10_000, 100_000, 1_000_000), (600, 1_200, 1_800))
    for label, count in zip(SIZES, sizes, strict=True):
        source = question_rows(count)
        store, out = session.scratch / "store", session.scratch / "out.parquet"
        sides = {
            "datasets.map": Side(
                program("peers/prep_map.py", source, model, out, default_contract().system_prompt), before=removed(out)
            ),
            "ours": Side(program("ours/prep.py", source, model, store), before=removed(store)),
        }
        if count > 100_000:
            del sides["datasets.map"]
        session.compare(label, sides, x=count, growth=count != sizes[0])
        removed(store, out)()


def asks(result: Result) -> None:
    """What was asked."""
    for label in SIZES[:2]:
        times = result.times(label, "datasets.map", "wall_s", inverse=True)
        result.ask(f"{label}: times as fast as datasets.map", times, ">=", 3)
    small, large = (result.found(label, "ours", "rss_mib") for label in (SIZES[0], SIZES[-1]))
    grown = large / small if small and large else None
    result.ask(f"peak memory, {SIZES[-1]} over {SIZES[0]}", grown, "<=", 1.2)


ROW = Row(
    name="prep",
    work="10,000, 100,000 and 1,000,000 rows made into chat prompts with token counts",
    peer="datasets.map with a plain function per row",
    ask=">= 3 x as fast; peak memory grows <= 1.2 from 10,000 to 1,000,000 rows",
    run=run,
    asks=asks,
    plots=(
        Plot("wall_s", "Time to prepare a dataset", "rows", "seconds"),
        Plot("rss_mib", "Peak memory of preparing", "rows", "MiB"),
    ),
)

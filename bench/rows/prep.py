"""Row `prep`: rows of JSONL made into chat prompts with token counts, as Parquet.

Ours does all the step does (gold answers read, repeats and leaks looked for, three splits, checksums); the peer builds
prompts, counts tokens and filters. At a million rows the peer is left out: it would take a quarter of an hour.
"""

from bench.inputs.made import question_rows, smollm2
from bench.session import Plot, Row, Session, Side, program, removed


def run(session: Session) -> None:
    """Measure."""
    from components.contract import default_contract

    model = smollm2()
    sizes = session.size((10_000, 100_000, 1_000_000), (600, 1_200))
    for count in sizes:
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
        session.compare(f"{count:,} rows", sides, x=count, growth=count != sizes[0])
        removed(store, out)()
    for count in sizes[:2]:
        found = session.result.found(f"{count:,} rows", growth=count != sizes[0])
        if found is not None:
            times = found["medians"]["datasets.map"]["wall_s"] / found["medians"]["ours"]["wall_s"]
            session.result.ask(f"{count:,} rows: times as fast as datasets.map", times, ">=", 3)
    small, large = session.result.found(f"{sizes[0]:,} rows"), session.result.found(f"{sizes[-1]:,} rows", growth=True)
    if small is not None and large is not None:
        grown = large["medians"]["ours"]["rss_mib"] / small["medians"]["ours"]["rss_mib"]
        session.result.ask(f"peak memory, {sizes[-1]:,} rows over {sizes[0]:,}", grown, "<=", 1.2)


ROW = Row(
    name="prep",
    work="10,000, 100,000 and 1,000,000 rows made into chat prompts with token counts",
    peer="datasets.map with a plain function per row",
    ask=">= 3 x as fast; peak memory grows <= 1.2 from 10,000 to 1,000,000 rows",
    run=run,
    plots=(
        Plot("wall_s", "Time to prepare a dataset", "rows", "seconds"),
        Plot("rss_mib", "Peak memory of preparing", "rows", "MiB"),
    ),
)

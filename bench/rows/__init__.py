"""The rows, in the order of the table. A new row is a module here with a `ROW`; its programs go to peers/ and ours/."""

from bench.rows import (
    cached,
    compile,
    evaluate,
    gpu_evaluate,
    gpu_step,
    merge,
    overhead,
    prep,
    reward,
    step,
    steps_overhead,
    store,
)
from bench.session import Row

ROWS: dict[str, Row] = {
    module.ROW.name: module.ROW
    for module in (
        overhead,
        step,
        merge,
        reward,
        prep,
        evaluate,
        store,
        cached,
        steps_overhead,
        compile,
        gpu_step,
        gpu_evaluate,
    )
}

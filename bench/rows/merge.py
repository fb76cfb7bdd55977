"""Row `merge`: a LoRA adapter folded into a model of several weight files, time and memory, and every tensor compared.

Verification, which the peer does not do, is left out of both. Needs about four times the model's size on disk.
"""

from typing import Any

from bench.inputs.made import random_llama, shard_bytes
from bench.measuring import run_program
from bench.results import Result
from bench.session import STATE, Plot, Row, Session, Side, base_environment, program, removed

HIDDEN = 2048
SHARDS = 5
RANKS = (16, 64)


def run(session: Session) -> None:
    """Measure."""
    layers, hidden = session.size(24, 2), session.size(HIDDEN, 256)
    for rank in RANKS:
        _compare(session, f"r{rank}", layers, hidden, rank)
    removed(STATE / f"llama-{layers}x{hidden}")()
    for points in session.size((6, 12), (1,)):
        _compare(session, f"{points} layers", points, hidden, RANKS[0], growth=True)
        removed(STATE / f"llama-{points}x{hidden}")()


def _compare(session: Session, label: str, layers: int, hidden: int, rank: int, *, growth: bool = False) -> None:
    inputs = random_llama(layers, hidden, RANKS, SHARDS)
    files = list((inputs / "base").glob("*.safetensors"))
    size = sum(path.stat().st_size for path in files) / 2**30
    out: dict[str, Any] = {side: session.scratch / side for side in ("peft", "ours")}
    shard = shard_bytes(layers, hidden, SHARDS)
    case = session.compare(
        label,
        {
            side: Side(program(name, inputs / "base", inputs / f"r{rank}", out[side], shard), before=removed(out[side]))
            for side, name in (("peft", "peers/merge_peft.py"), ("ours", "ours/merge.py"))
        },
        x=round(size, 3) if growth or rank == RANKS[0] else None,
        growth=growth,
    )
    case["facts"] |= {"GiB": round(size, 2), "files": len(files), "layers": layers}
    if all(path.exists() for path in out.values()):
        compared = program("inputs/equal_tensors.py", out["ours"], out["peft"])
        found = run_program(compared, environment=base_environment())
        case["facts"]["tensors"] = {key: found[key] for key in ("equal", "ours", "peer")}
    removed(*out.values())()
    session.result.save()


def asks(result: Result) -> None:
    """What was asked."""
    for label in (f"r{rank}" for rank in RANKS):
        result.ask(f"{label}: peak memory over peft's", result.times(label, "peft", "rss_mib"), "<=", 0.3)
        result.ask(f"{label}: time over peft's", result.times(label, "peft", "wall_s"), "<=", 0.5)
    tensors = [case["facts"]["tensors"] for case in result.data["cases"] if "tensors" in case["facts"]]
    unequal = sum(max(each["ours"], each["peer"]) - each["equal"] for each in tensors) if tensors else None
    result.ask("tensors not equal bit for bit", unequal, "<=", 0)


ROW = Row(
    name="merge",
    work="a LoRA adapter merged into a 1.2 billion parameter model in five files, ranks 16 and 64",
    peer="peft: load, merge_and_unload, save_pretrained",
    ask="peak memory <= 0.3, time <= 0.5, equal bit for bit",
    run=run,
    asks=asks,
    plots=(
        Plot("wall_s", "Time to merge", "model, GiB", "seconds"),
        Plot("rss_mib", "Peak memory of a merge", "model, GiB", "MiB"),
    ),
)

"""Row `merge`: a LoRA adapter folded into a model of several weight files, time and memory, and every tensor compared.

Verification, which the peer does not do, is left out of both. Needs about four times the model's size on disk.
"""

from typing import Any

from bench.inputs.made import random_llama, shard_bytes
from bench.measuring import run_program
from bench.session import STATE, Plot, Row, Session, Side, base_environment, program, removed

HIDDEN = 2048
SHARDS = 5


def run(session: Session) -> None:
    """Measure."""
    layers = session.size(24, 2)
    hidden = session.size(HIDDEN, 256)
    for rank in (16, 64):
        _compare(session, f"r{rank}, {layers} layers", layers, hidden, rank, main=True)
        removed(STATE / f"llama-{layers}x{hidden}-r{rank}")()
    for points in session.size((6, 12), (1,)):
        _compare(session, f"{points} layers", points, hidden, 16)
        removed(STATE / f"llama-{points}x{hidden}-r16")()
    for rank in (16, 64):
        case = session.result.found(f"r{rank}, {layers} layers")
        ratio = case["ratio"].get("peft", {}) if case else {}
        session.result.ask(f"r{rank}: peak memory over peft's", ratio.get("rss_mib"), "<=", 0.3)
        session.result.ask(f"r{rank}: time over peft's", ratio.get("wall_s"), "<=", 0.5)
        tensors = case["facts"].get("tensors", {}) if case else {}
        if tensors:
            unequal = max(tensors["ours"], tensors["peer"]) - tensors["equal"]
            session.result.ask(f"r{rank}: tensors not equal bit for bit", unequal, "<=", 0)


def _compare(session: Session, label: str, layers: int, hidden: int, rank: int, *, main: bool = False) -> None:
    inputs = random_llama(layers, hidden, rank, SHARDS)
    size = sum(path.stat().st_size for path in (inputs / "base").glob("*.safetensors"))
    out: dict[str, Any] = {side: session.scratch / side for side in ("peft", "ours")}
    shard = shard_bytes(layers, hidden, SHARDS)
    case = session.compare(
        label,
        {
            side: Side(program(name, inputs / "base", inputs / "adapter", out[side], shard), before=removed(out[side]))
            for side, name in (("peft", "peers/merge_peft.py"), ("ours", "ours/merge.py"))
        },
        x=round(size / 2**30, 3),
        growth=not main,
    )
    case["facts"] |= {"model_gib": round(size / 2**30, 2), "shards": len(list((inputs / "base").glob("*.safetensors")))}
    if all(path.exists() for path in out.values()):
        found = run_program(
            program("inputs/equal_tensors.py", out["ours"], out["peft"]), environment=base_environment()
        )
        case["facts"]["tensors"] = {key: found[key] for key in ("equal", "ours", "peer")}
    removed(*out.values())()
    session.result.save()


ROW = Row(
    name="merge",
    work="a LoRA adapter merged into a 1.2 billion parameter model in five files, ranks 16 and 64",
    peer="peft: load, merge_and_unload, save_pretrained",
    ask="peak memory <= 0.3, time <= 0.5, equal bit for bit",
    run=run,
    plots=(
        Plot("wall_s", "Time to merge", "model, GiB", "seconds"),
        Plot("rss_mib", "Peak memory of a merge", "model, GiB", "MiB"),
    ),
)

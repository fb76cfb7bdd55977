"""Row `evaluate`: greedy completions of GSM8K prompts by SmolLM2-135M, tokens a second; and the same text in float32.

Rates are of generation alone, imports and loading aside. In bfloat16 a token may differ with the batch it is computed
in, so that texts are compared in float32.
"""

import json
from pathlib import Path

from bench.inputs.made import smollm2
from bench.measuring import run_program
from bench.session import Plot, Row, Session, Side, base_environment, program

BATCH = 16


def run(session: Session) -> None:
    """Measure."""
    model = smollm2()
    tokens = session.size(64, 4)
    counts = session.size((16, 64, 256), (2, 4))
    middle = counts[1]
    _compare(session, f"{middle} prompts, bfloat16", model, middle, BATCH, tokens, "bfloat16")
    _compare(
        session, f"{middle} prompts, bfloat16, ours chooses its batch", model, middle, "auto", tokens, "bfloat16", 1
    )
    _compare(session, f"{counts[0]} prompts, float32", model, counts[0], BATCH, tokens, "float32", 1)
    for count in counts:
        if count != middle:
            _compare(session, f"{count} prompts", model, count, BATCH, tokens, "bfloat16", growth=True)
    for label, growth in ((f"{middle} prompts, bfloat16", False), (f"{counts[-1]} prompts", True)):
        case = session.result.found(label, growth=growth)
        if case is not None and "generate" in case["ratio"]:
            rate = case["ratio"]["generate"]["tokens_per_s"]
            session.result.ask(f"{label}: tokens a second over generate in file order", rate, ">=", 1.6)
    case = session.result.found(f"{counts[0]} prompts, float32")
    if case is not None and "texts that differ" in case["facts"]:
        session.result.ask("float32: texts that differ", case["facts"]["texts that differ"], "<=", 0)


def _compare(
    session: Session,
    label: str,
    model: Path,
    count: int,
    batch: int | str,
    tokens: int,
    dtype: str,
    pairs: int | None = None,
    *,
    growth: bool = False,
) -> None:
    prompts = session.scratch / f"prompts-{count}.json"
    if not prompts.exists():
        run_program(program("inputs/render_prompts.py", model, count, prompts), environment=base_environment())
    out = {side: session.scratch / f"{side}.json" for side in ("generate", "ours")}
    theirs = BATCH if batch == "auto" else batch
    case = session.compare(
        label,
        {
            "generate": Side(
                program("peers/evaluate_generate.py", model, prompts, theirs, tokens, dtype, out["generate"])
            ),
            "ours": Side(program("ours/evaluate.py", model, prompts, batch, tokens, dtype, out["ours"])),
        },
        x=count if dtype == "bfloat16" and batch != "auto" else None,
        growth=growth,
        pairs=pairs,
    )
    if all(path.exists() for path in out.values()):
        first, second = (json.loads(path.read_text(encoding="utf-8")) for path in out.values())
        case["facts"] |= {"texts": count, "texts that differ": sum(a != b for a, b in zip(first, second, strict=True))}
        session.result.save()


ROW = Row(
    name="evaluate",
    work="greedy completions of 64 and 256 GSM8K prompts by SmolLM2-135M, 64 tokens each, bfloat16",
    peer="Hugging Face generate in file order, the same batch of 16",
    ask=">= 1.6 x the tokens a second; the same texts in float32",
    run=run,
    plots=(Plot("generate_s", "Time to complete prompts", "prompts", "seconds"),),
)

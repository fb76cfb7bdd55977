"""Row `evaluate`: greedy completions of GSM8K prompts by SmolLM2-135M, tokens a second; and the same text in float32.

Rates are of generation alone, imports and loading aside. In bfloat16 a token may differ with the batch it is computed
in, so that texts are compared in float32.
"""

import json
from pathlib import Path

from bench.inputs.made import smollm2
from bench.measuring import run_program
from bench.results import Result
from bench.session import Plot, Row, Session, Side, base_environment, program

BATCH = 16
MAIN = "64 prompts"
GROWN = "256 prompts"
CHECK = "16 prompts in float32"


def run(session: Session) -> None:
    """Measure."""
    model = smollm2()
    tokens = session.size(64, 4)
    small, middle, large = session.size((16, 64, 256), (2, 4, 6))
    _compare(session, MAIN, model, middle, BATCH, tokens, "bfloat16")
    _compare(session, CHECK, model, small, BATCH, tokens, "float32", 1)
    _compare(session, GROWN, model, large, BATCH, tokens, "bfloat16", growth=True)
    _compare(session, f"{small} prompts", model, small, BATCH, tokens, "bfloat16", growth=True)


def asks(result: Result) -> None:
    """What was asked."""
    for label in (MAIN, GROWN):
        times = result.times(label, "generate", "tokens_per_s")
        result.ask(f"{label}: tokens a second over generate in file order", times, ">=", 1.6)
    for case in result.data["cases"]:
        if case["label"] == CHECK and "texts that differ" in case["facts"]:
            result.ask("float32: texts that differ", case["facts"]["texts that differ"], "<=", 0)


def _compare(
    session: Session,
    label: str,
    model: Path,
    count: int,
    batch: int,
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
    case = session.compare(
        label,
        {
            "generate": Side(
                program("peers/evaluate_generate.py", model, prompts, batch, tokens, dtype, out["generate"])
            ),
            "ours": Side(program("ours/evaluate.py", model, prompts, batch, tokens, dtype, out["ours"])),
        },
        x=count if dtype == "bfloat16" else None,
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
    asks=asks,
    plots=(Plot("generate_s", "Time to complete prompts", "prompts", "seconds"),),
)

"""Row `gpu-evaluate`: greedy completions on one GPU, by both engines of the evaluation.

Random weights of Qwen2.5-1.5B's shape: what is measured is speed.
"""

import importlib.util

from bench.measuring import run_program
from bench.results import Result
from bench.session import STATE, Row, Session, Side, base_environment, program

BATCH = 64


def run(session: Session) -> None:
    """Measure."""
    model = STATE / session.size("qwen-1.5b", "qwen-tiny")
    count, tokens = session.size(256, 4), session.size(128, 8)
    if not (model / "config.json").exists():
        run_program(
            program("inputs/random_qwen.py", model, *session.size((), (2, 256))), environment=base_environment()
        )
    prompts = session.scratch / "prompts.json"
    run_program(program("inputs/render_prompts.py", model, count, prompts), environment=base_environment())
    out = session.scratch / "out.json"
    sides = {
        "transformers": {
            "generate": Side(program("peers/evaluate_generate.py", model, prompts, BATCH, tokens, "bfloat16", out)),
            "ours": Side(program("ours/evaluate.py", model, prompts, BATCH, tokens, "bfloat16", out)),
        }
    }
    if importlib.util.find_spec("vllm") is not None:
        sides["vLLM"] = {
            "vllm": Side(program("peers/gpu_vllm.py", model, prompts, tokens, out)),
            "ours": Side(program("ours/evaluate.py", model, prompts, "auto", tokens, "bfloat16", out, "vllm")),
        }
    for engine, both in sides.items():
        session.compare(engine, both, pairs=1)


def asks(result: Result) -> None:
    """What was asked."""
    for engine, peer, limit in (("transformers", "generate", 1.6), ("vLLM", "vllm", 1.0)):
        times = result.times(engine, peer, "tokens_per_s")
        result.ask(f"{engine}: tokens a second, ours over the peer's", times, ">=", limit)


ROW = Row(
    name="gpu-evaluate",
    work="greedy completions of 256 GSM8K prompts, 128 tokens each, on one GPU, by transformers and by vLLM",
    peer="Hugging Face generate in file order, the same batch; vLLM's LLM.generate",
    ask=">= 1.6 x the tokens a second with transformers, >= 1.0 x with vLLM",
    run=run,
    asks=asks,
    gpu=True,
)

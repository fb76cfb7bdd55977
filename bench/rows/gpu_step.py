"""Row `gpu-step`: GRPO steps of a model of Qwen2.5-1.5B's shape with random weights, on one GPU.

Once with transformers generating and, where it is installed, once with vLLM in the same process. One pair each, so that
all of it fits into a call of five minutes; `--pairs` asks for more.
"""

import importlib.util

from bench.measuring import run_program
from bench.results import Result
from bench.session import STATE, Row, Session, Side, base_environment, program, removed

STEPS = 3
TOKENS = 512
SETTINGS = (
    "training.num_generations=16", "training.prompts_per_step=1", "training.per_device_train_batch_size=16",
    "training.learning_rate=1e-6", "training.threads=null", "training.validation_rows=0", "model.dtype=bfloat16",
    "training.save_steps=100", "training.gradient_checkpointing=false",
)  # fmt: skip


def run(session: Session) -> None:
    """Measure."""
    model = STATE / session.size("qwen-1.5b", "qwen-tiny")
    steps, tokens = session.size(STEPS, 1), session.size(TOKENS, 16)
    if not (model / "config.json").exists():
        run_program(
            program("inputs/random_qwen.py", model, *session.size((), (2, 256))), environment=base_environment()
        )
    ways: dict[str, tuple[str, ...]] = {"transformers": ()}
    if importlib.util.find_spec("vllm") is not None:
        ways["vLLM colocate"] = ("training.generation=vllm-colocate", "training.vllm_gpu_memory_utilization=0.3")
    for way, settings in ways.items():
        inputs, out = session.scratch / f"inputs-{len(settings)}", session.scratch / "peer"
        inputs.mkdir()
        values = (*SETTINGS, f"training.max_completion_length={tokens}", *settings)
        run_program(program("inputs/training_inputs.py", inputs, steps, model, *values), environment=base_environment())
        peer = program("peers/gpu_grpo.py", model, out, "--steps", steps, "--tokens", tokens)
        session.compare(
            way,
            {
                "trl": Side([*peer, *(["--vllm"] if settings else [])], before=removed(out)),
                "ours": Side(
                    program("ours/train.py", inputs / "inputs.json", inputs / "store", inputs / "work"),
                    before=removed(inputs / "store" / "training", inputs / "mlflow.db", inputs / "work"),
                ),
            },
            pairs=1,
        )


def asks(result: Result) -> None:
    """What was asked."""
    for way in ("transformers", "vLLM colocate"):
        times = result.times(way, "trl", "train_s", inverse=True)
        result.ask(f"{way}: steps a second, ours over TRL's", times, ">=", 1.0)


ROW = Row(
    name="gpu-step",
    work="GRPO steps of a model of Qwen2.5-1.5B's shape, random weights, G=16, 512 tokens, bfloat16, LoRA",
    peer="a bare GRPOTrainer, with transformers and with vLLM colocated (peers/gpu_grpo.py)",
    ask=">= 1.0 x the steps a second",
    run=run,
    asks=asks,
    gpu=True,
)

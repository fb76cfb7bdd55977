"""Row `step`: the quickstart's training alone: seconds of the training loop, with whatever the callbacks do in it.

Ours runs as in the pipeline: rewards in a guarded process, guards, MLflow, validation, checkpoints sent to the store.
Both sides take the same rewards, seed, batch and number of steps.
"""

from bench.measuring import run_program
from bench.results import Result
from bench.session import Row, Session, Side, base_environment, program, removed

STEPS = 20
TRAINING = f"{STEPS} steps"


def run(session: Session) -> None:
    """Measure."""
    steps = session.size(STEPS, 1)
    inputs, out = session.scratch / "inputs", session.scratch / "peer"
    inputs.mkdir()
    run_program(program("inputs/training_inputs.py", inputs, steps), environment=base_environment())
    threads = {"OMP_NUM_THREADS": "1"}
    session.compare(
        TRAINING,
        {
            "trl": Side(
                program("peers/quickstart_trl.py", out, "--steps", steps, "--train-only"),
                before=removed(out),
                environment=threads,
            ),
            "ours": Side(
                program("ours/train.py", inputs / "inputs.json", inputs / "store", inputs / "work"),
                before=removed(inputs / "store" / "training", inputs / "mlflow.db", inputs / "work"),
                environment=threads,
            ),
        },
        pairs=3,
    )


def asks(result: Result) -> None:
    """What was asked."""
    times = result.times(TRAINING, "trl", "train_s", inverse=True)
    result.ask("steps a second, ours over TRL's", times, ">=", 1.0)
    by_cpu = result.times(TRAINING, "trl", "train_cpu_s", inverse=True)
    result.ask("steps a CPU second of the training process, ours over TRL's", by_cpu, ">=", 1.0)
    tokens = result.times(TRAINING, "trl", "tokens")
    result.ask("tokens a second, ours over TRL's", tokens * times if tokens and times else None, ">=", 1.0)


ROW = Row(
    name="step",
    work=f"{STEPS} GRPO steps of configs/quickstart.yaml, logging and checkpoints on",
    peer="a bare GRPOTrainer with the same values (peers/quickstart_trl.py --train-only)",
    ask=">= 1.0 x the steps a second",
    run=run,
    asks=asks,
    limits=(
        "Nearly all of our loop is TRL's own generating and updating; rewards take next to nothing of it. "
        "What is left is the callbacks, which the peer does not have: a check on validation rows, MLflow, "
        "checkpoints hashed and stored. On a busy machine the two sides differ by what else ran meanwhile: "
        "compare CPU seconds, or measure again on a quiet one."
    ),
)

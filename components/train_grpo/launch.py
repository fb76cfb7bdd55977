"""Several training processes on one machine: started, told to stop, and ended together. Called by train.py.

`run_in_processes` starts `python -m components.train_grpo.launch FOLDER` once a rank with the variables torch and
accelerate read, and waits. A rank that ends badly ends the others. SIGTERM and SIGINT are passed on, so that all ranks
save in the same step. Started under torchrun this is not used. One machine only.
"""

import contextlib
import ctypes
import json
import logging
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from components.errors import BadInputError, GateFailedError, PipelineError, ResumableError
from components.storage.references import Reference
from components.storage.store import ArtifactStore, open_store

if TYPE_CHECKING:
    from components.train_grpo.train import TrainingInputs

GRACE_SECONDS = 60.0
"""How long the other ranks may take to end after one has ended badly; they may wait in a collective for it."""

AGAIN = 75
"""Exit code of a rank that ran out of memory and wrote down a smaller micro-batch: all start again."""

ERRORS = {kind.__name__: kind for kind in (PipelineError, BadInputError, GateFailedError, ResumableError)}

PR_SET_PDEATHSIG = 1
"""prctl(2): the signal a process gets when its parent dies."""


def run_in_processes(
    inputs: "TrainingInputs", store: ArtifactStore, processes: int, *, prefix: str, key: str, output: Path
) -> tuple[Reference, str]:
    """Train in so many processes.

    Args:
        inputs: everything the training depends on.
        store: the artifact store.
        processes: how many.
        prefix: key of the training in the store.
        key: the training hash.
        output: local folder for checkpoints.

    Returns:
        The adapter's reference and the MLflow run's id.

    Raises:
        PipelineError: of the kind that the first failing rank raised.
    """
    given = {"inputs": inputs, "store": store.config, "prefix": prefix, "key": key, "output": output}
    (output / "given.pickle").write_bytes(pickle.dumps(given))
    while True:
        for stale in output.glob("ended-*.json"):
            stale.unlink()
        codes = _run_once(output, processes)
        if AGAIN not in codes:
            break
    ended = {int(p.stem.partition("-")[2]): json.loads(p.read_text()) for p in sorted(output.glob("ended-*.json"))}
    for said in ended.values():
        if "error" in said:
            raise ERRORS[said["error"]](said["message"])
    if any(codes) or 0 not in ended:
        bad = next((rank for rank, code in enumerate(codes) if code), 0)
        raise PipelineError(
            f"training process {bad} of {processes} ended without a word (exit code {codes[bad]}: killed, or out of "
            "memory); the same command goes on from the last checkpoint"
        )
    return Reference.parse(ended[0]["reference"]), str(ended[0]["run_id"])


def _run_once(output: Path, processes: int) -> list[int]:
    """Start all ranks and wait until all have ended; their exit codes."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    common = {
        **os.environ,
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    started: list[subprocess.Popen[bytes]] = []
    with _passing_signals_on(started):
        for rank in range(processes):
            started.append(
                subprocess.Popen(  # noqa: S603 (our own module)
                    [sys.executable, "-m", "components.train_grpo.launch", str(output)],
                    env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                    stdin=subprocess.DEVNULL,
                )
            )
        deadline: float | None = None
        while any(process.poll() is None for process in started):
            time.sleep(0.2)
            failed = any(process.poll() not in (None, 0) for process in started)
            if failed and deadline is None:
                deadline = time.monotonic() + (0.0 if any(p.poll() == AGAIN for p in started) else GRACE_SECONDS)
            if deadline is not None and time.monotonic() > deadline:
                for process in started:
                    process.kill()
    return [process.wait() for process in started]


@contextlib.contextmanager
def _passing_signals_on(processes: list["subprocess.Popen[bytes]"]) -> Iterator[None]:
    """While ranks run, SIGTERM and SIGINT go to each of them."""

    def pass_on(number: int, frame: Any) -> None:
        for process in processes:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)

    previous = {number: signal.signal(number, pass_on) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def main(output: Path) -> int:
    """One rank.

    Args:
        output: the folder `run_in_processes` prepared.

    Returns:
        The exit code; what is to say about it lies in `ended-<rank>.json`.
    """
    if sys.platform == "linux":
        # The lease is the parent's: without it nobody may write, so a rank does not outlive it.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    rank = os.environ["RANK"]
    level = logging.INFO if rank == "0" else logging.WARNING
    logging.basicConfig(level=level, format=f"%(asctime)s [{rank}] %(levelname)s %(name)s: %(message)s")
    from components.train_grpo.stages import OutOfMemoryError, run_stages

    given = pickle.loads((output / "given.pickle").read_bytes())  # noqa: S301 (written by our own parent)
    ended = output / f"ended-{rank}.json"
    try:
        reference, run_id = run_stages(
            given["inputs"], open_store(given["store"]), prefix=given["prefix"], key=given["key"], output=output
        )
    except OutOfMemoryError:
        return AGAIN
    except PipelineError as error:
        ended.write_text(json.dumps({"error": type(error).__name__, "message": str(error)}))
        return int(error.exit_code)
    if rank == "0":
        ended.write_text(json.dumps({"reference": str(reference), "run_id": run_id}))
    return 0


if __name__ == "__main__":
    code = main(Path(sys.argv[1]))
    sys.stdout.flush()
    sys.stderr.flush()
    # Collectives that wait for a rank that is gone would keep a normal exit from ending.
    os._exit(code)

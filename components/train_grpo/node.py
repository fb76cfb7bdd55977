"""One rank of a training on several nodes: `torchrun -m components.train_grpo.node`, started by a TrainJob.

Trains as one process of many (stages.py); what it is to do stands in the environment (train_job.py), what comes of it
is left as a note in the store. The lease is held by the step that made the job.
"""

import json
import logging
import os
import sys

from components.errors import PipelineError
from components.steps import work_directory
from components.storage.config import StoreConfig
from components.storage.store import open_store
from components.train_grpo.train import inputs_from_sections
from components.train_grpo.train_job import AGAIN, GIVEN_VARIABLE, say


def main() -> int:
    """Train.

    Returns:
        The exit code; torchrun ends the other ranks of a node when it is not 0, the job those of the others.
    """
    rank = os.environ.get("RANK", "0")
    level = logging.INFO if rank == "0" else logging.WARNING
    logging.basicConfig(level=level, format=f"%(asctime)s [{rank}] %(levelname)s %(name)s: %(message)s")
    given = json.loads(os.environ[GIVEN_VARIABLE])
    key = given["key"]
    store = open_store(StoreConfig.from_json(given["store"]))
    output = work_directory("train_grpo") / "training" / key[:32]
    output.mkdir(parents=True, exist_ok=True)
    from components.train_grpo.stages import OutOfMemoryError, run_stages

    try:
        reference, run_id = run_stages(
            inputs_from_sections(**given["sections"]), store, prefix=given["prefix"], key=key, output=output
        )
    except OutOfMemoryError:
        say(store, key, {AGAIN: True})
        return 1
    except PipelineError as error:
        say(store, key, {"error": type(error).__name__, "message": str(error)})
        return int(error.exit_code)
    if rank == "0":
        say(store, key, {"reference": str(reference), "run_id": run_id})
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Collectives that wait for a rank that is gone would keep a normal exit from ending.
    os._exit(code)

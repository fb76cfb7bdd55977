"""The process in which KFP's local runner works: `python -m pipeline.local_process RUN_FOLDER`, started by runners.py.

Compiles the graph into the run folder, then runs the compiled file, one subprocess or one container a step. It lives in
a process group of its own together with its steps: when it is told to stop, or the command that started it dies, it
passes SIGTERM on to all of them and waits, so that training can save a checkpoint.
"""

import ctypes
import json
import os
import signal
import sys
import types
import warnings
from pathlib import Path
from typing import Any

from components.errors import ExitCode, PipelineError
from components.storage.references import Reference
from components.storage.store import open_store
from pipeline.config import RunConfig

PR_SET_PDEATHSIG = 1
"""prctl(2): the signal a process gets when its parent dies."""


def main(folder: Path) -> int:
    """Compile and run what the folder's `submission.json` says.

    Args:
        folder: the run folder made by runners.py.

    Returns:
        The exit code: 0, or 1 when a step failed (its event says why).
    """
    submission = json.loads((folder / "submission.json").read_text(encoding="utf-8"))
    containers = submission["runner"] == "docker"
    _follow_parent(folder if containers else None)
    config = RunConfig.model_validate_json(submission["config"])
    # A reference names a place in S3 and not the endpoint, which the config may know alone.
    os.environ.update(config.store.environment())
    cache = Path(submission["cache"])
    warnings.filterwarnings("ignore", category=RuntimeWarning)
    _leave_out_client()
    from kfp import components, local

    from pipeline.docker_runner import make_runner
    from pipeline.graph import build_pipeline, compile_pipeline
    from pipeline.planning.sweep_graph import build_sweep

    compiled = folder / "pipeline.yaml"
    if "sweep" in submission:
        pipeline = build_sweep(config.resources, **submission["sweep"], caching=submission["caching"], retries=False)
    else:
        pipeline = build_pipeline(config.resources, caching=submission["caching"], retries=False)
    compile_pipeline(pipeline, submission["arguments"], compiled)
    drop_stale_entries(cache)
    local.init(
        runner=make_runner(config, folder) if containers else local.SubprocessRunner(use_venv=False),
        pipeline_root=str(folder / "steps"),
        workspace_root=str(folder / "workspace"),
        raise_on_error=False,
        enable_caching=True,
        cache_root=str(cache),
    )
    task = components.load_component_from_file(str(compiled))(**submission["arguments"])
    return int(ExitCode.PASSED if task.outputs else ExitCode.ERROR)


def _leave_out_client() -> None:
    """Keep `import kfp` from importing its client, which brings the kubernetes package: a second for nothing."""
    client = types.ModuleType("kfp.client")
    client.__dict__["Client"] = None
    sys.modules.setdefault(client.__name__, client)


def drop_stale_entries(cache: Path) -> None:
    """Forget cached results that name artifacts no longer in their store, so that the step runs again.

    Args:
        cache: KFP's local cache folder (one JSON file an entry, outputs by name).
    """
    for entry in cache.glob("*.json"):
        outputs = json.loads(entry.read_text(encoding="utf-8"))
        if not all(_is_there(value) for value in outputs.values() if isinstance(value, str)):
            entry.unlink()


def _is_there(value: str) -> bool:
    """Whether a step's output is no reference, or one whose artifact is complete."""
    if "@sha256:" not in value:
        return True
    reference = Reference.parse(value)
    root, _, key = reference.uri.rpartition("/")
    try:
        return open_store(root).find(key) == reference
    except PipelineError:
        return False


def _follow_parent(containers_of: Path | None) -> None:
    """Stop the whole process group on SIGTERM and SIGINT, and when the parent dies (Linux).

    Args:
        containers_of: run folder whose steps are containers, no processes of this group.
    """

    def pass_on(number: int, frame: Any) -> None:
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, signal.SIG_IGN)
        os.killpg(0, signal.SIGTERM)
        if containers_of is not None:
            from pipeline.docker_runner import stop_containers

            stop_containers(containers_of)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, pass_on)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))

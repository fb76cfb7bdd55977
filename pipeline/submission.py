"""What a run is started with: checked inputs, a person's reward files in the store, the graph's parameters.

Called by runners.py before anything runs. What it refuses (missing files, a store that cannot be written, MLflow that
does not answer) is refused here, before a pod or a process starts and with nothing left behind.
"""

import json
import shutil
import sqlite3
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from components.errors import BadInputError
from components.rewards.config import StoredCode, file_sha256
from components.storage.store import ArtifactStore, open_store
from pipeline.config import RunConfig

if TYPE_CHECKING:
    from pipeline.planning.sweep import Sweep

MINIMUM_FREE_BYTES = 200 * 2**20
"""Below this much free space on the state folder's disk no run is begun."""

MLFLOW_TIMEOUT_SECONDS = 10.0
"""How long an MLflow server may take to answer its health page."""


def prepare_submission(
    config: RunConfig,
    folder: Path,
    *,
    cache: Path,
    caching: bool,
    inputs: Callable[[list[Path]], str],
    runner: str = "local",
    sweep: "Sweep | None" = None,
) -> None:
    """Write `submission.json` into the run folder.

    Args:
        config: the run config.
        folder: the run folder.
        cache: KFP's cache folder.
        caching: whether unchanged steps may be reused.
        inputs: hashes files and folders.
        runner: `docker` puts local inputs into the store, where steps in containers can read them.
        sweep: a grid to train instead of the config alone.
    """
    from pipeline.arguments import pipeline_arguments
    from pipeline.inputs import store_inputs

    store = open_store(config.store)
    config = store_reward_files(config, store)
    model_inputs, data_inputs = inputs(config.model.local_files()), inputs(config.data.local_files())
    if runner == "docker":
        config = store_inputs(config, store)
    arguments = pipeline_arguments(config, model_inputs=model_inputs, data_inputs=data_inputs)
    submission: dict[str, Any] = {
        "runner": runner,
        "config": config.to_json(),
        "arguments": arguments,
        "cache": str(cache.absolute()),
        "caching": caching,
    }
    if sweep is not None:
        from pipeline.planning.sweep import sweep_arguments

        sweep = replace(sweep, base=config).with_configs(lambda point: store_reward_files(point, store))
        submission["arguments"] = sweep_arguments(sweep, model_inputs=model_inputs, data_inputs=data_inputs)
        submission["sweep"] = {"parallel": sweep.parallel, "varied": sweep.varied()}
    (folder / "submission.json").write_text(json.dumps(submission, indent=1), encoding="utf-8")


def new_attempt() -> str:
    """A name for a training that starts anew beside an equal one: the time, to the millisecond."""
    return datetime.now(UTC).strftime("%Y%m%d-%H%M%S-%f")[:-3]


def check_inputs(config: RunConfig, home: Path) -> None:
    """Refuse what would make a run fail later; leaves nothing behind, refused or not.

    Args:
        config: the run config.
        home: the state folder.

    Raises:
        BadInputError: naming the field, the value and the mend.
    """
    fresh = not home.exists()
    try:
        _check(config, home)
    finally:
        if fresh:
            # Asking a store in the state folder whether it can be written makes that folder.
            shutil.rmtree(home, ignore_errors=True)


def _check(config: RunConfig, home: Path) -> None:
    for section in (config.data, config.model):
        try:
            section.local_files()
        except ValueError as error:
            raise BadInputError(str(error)) from error
    anchor = _existing_parent(home)
    free = shutil.disk_usage(anchor).free
    if free < MINIMUM_FREE_BYTES:
        raise BadInputError(
            f"only {free / 2**20:.0f} MiB are free on the disk of {anchor}; free at least "
            f"{MINIMUM_FREE_BYTES / 2**20:.0f} MiB, or run from a folder on another disk"
        )
    open_store(config.store).check_writable()
    check_tracking(config.tracking.uri)
    if config.tracking.uri.startswith(("http://", "https://")) and not config.store.uri.startswith("s3://"):
        raise BadInputError(
            f"store.uri: {config.store.uri} is a folder, and an MLflow server ({config.tracking.uri}) registers no "
            "weights that lie in a folder; write store.uri: s3://bucket/prefix, or tracking.uri: "
            "sqlite:///.grpo/mlflow.db"
        )


def check_tracking(uri: str) -> None:
    """Refuse an MLflow that does not answer.

    Args:
        uri: tracking.uri.

    Raises:
        BadInputError: with what to mend.
    """
    if uri.startswith("sqlite:///"):
        path = Path(uri.removeprefix("sqlite:///"))
        if not path.exists():
            parent = _existing_parent(path.parent)
            if not _writable(parent):
                raise BadInputError(
                    f"tracking.uri: {path} cannot be made, {parent} is not writable; choose another place"
                )
            return
        try:
            with sqlite3.connect(f"file:{path}?mode=rw", uri=True) as database:
                database.execute("select count(*) from sqlite_master")
        except sqlite3.Error as error:
            raise BadInputError(f"tracking.uri: {path} is not a writable SQLite database ({error})") from error
        return
    if not uri.startswith(("http://", "https://")):
        raise BadInputError(f"tracking.uri: {uri!r} is neither http(s)://host nor sqlite:///file; write one of these")
    health = uri.rstrip("/") + "/health"
    try:
        with urllib.request.urlopen(health, timeout=MLFLOW_TIMEOUT_SECONDS) as answer:  # noqa: S310 (http checked)
            answer.read(64)
    except urllib.error.HTTPError as error:
        if error.code not in (401, 403):  # answers, with authentication on: the client's credentials are checked later
            raise BadInputError(f"tracking.uri: {health} answers {error.code}; is {uri} an MLflow server?") from error
    except (urllib.error.URLError, OSError) as error:
        raise BadInputError(
            f"tracking.uri: MLflow at {uri} does not answer ({getattr(error, 'reason', error)}); start it, or mend it"
        ) from error


def store_reward_files(config: RunConfig, store: ArtifactStore) -> RunConfig:
    """Put a person's own reward files into the store, so that a step in any container can load them.

    Args:
        config: the run config, paths absolute.
        store: the artifact store.

    Returns:
        The config with the stored files' references in its rewards.
    """
    rewards, changes = config.rewards, {}
    for name, path in rewards.code_files().items():
        digest = file_sha256(path)
        with tempfile.TemporaryDirectory() as folder:
            shutil.copyfile(path, Path(folder) / path.name)
            reference = store.put(
                Path(folder), f"rewards/{digest[:32]}", provenance={"kind": "reward", "file": path.name}
            )
        stored = StoredCode(reference=str(reference), file=path.name, sha256=digest)
        changes[name] = rewards.rewards()[name].model_copy(update={"stored": stored})
    return config.model_copy(update={"rewards": rewards.with_rewards(changes)}) if changes else config


def _existing_parent(path: Path) -> Path:
    """The nearest folder above (or at) a path that exists."""
    path = path.absolute()
    while not path.exists():
        path = path.parent
    return path


def _writable(folder: Path) -> bool:
    """Whether a file can be made in a folder (asked by making one: permission bits do not bind root)."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False

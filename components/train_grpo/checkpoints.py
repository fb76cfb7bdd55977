"""Checkpoints in the artifact store: uploaded beside the training, taken up again by the newest complete one.

A checkpoint counts when its manifest is there (written last) and its files match it; a damaged one is passed over with
a warning. Called by callbacks.py (save) and train.py (resume).
"""

import logging
import re
import shutil
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from components.errors import PipelineError
from components.storage.manifest import DamagedArtifactError
from components.storage.store import ArtifactStore

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Checkpoint:
    """A complete, verified checkpoint.

    Attributes:
        step: optimizer steps done.
        directory: its local files.
    """

    step: int
    directory: Path


def newest_checkpoint(store: ArtifactStore, prefix: str, cache: Path) -> Checkpoint | None:
    """The newest checkpoint below a prefix whose files are all there and unharmed.

    Args:
        store: the artifact store.
        prefix: key of the stage's checkpoints.
        cache: folder for downloads.

    Returns:
        The checkpoint, or None when training has to begin at the beginning.
    """
    steps = sorted((step_of(key), key) for key in store.keys(prefix))
    for step, key in reversed(steps):
        reference = store.find(key)
        if reference is None:
            continue
        try:
            return Checkpoint(step, store.fetch(reference, cache))
        except DamagedArtifactError as error:
            log.warning("checkpoint of step %d is damaged and passed over: %s", step, error)
            store.delete(key)  # training comes by this step again, and an artifact is never overwritten
        except PipelineError as error:
            log.warning("checkpoint of step %d cannot be read and is passed over: %s", step, error)
    return None


def fetch_checkpoint(store: ArtifactStore, prefix: str, step: int, cache: Path) -> Checkpoint:
    """A checkpoint that the first rank chose, on a node that has not its files.

    Args:
        store: the artifact store.
        prefix: key of the stage's checkpoints.
        step: which one.
        cache: folder for downloads.

    Raises:
        PipelineError: when it is gone.
    """
    reference = store.find(f"{prefix}/checkpoint-{step}")
    if reference is None:
        raise PipelineError(f"the checkpoint of step {step} is no longer in {store.uri}; the same command begins anew")
    return Checkpoint(step, store.fetch(reference, cache))


def step_of(key: str) -> int:
    """The step in a checkpoint's key, or -1 for a key that is not one.

    Args:
        key: such as training/<hash>/grpo/checkpoints/checkpoint-20.
    """
    match = re.search(r"checkpoint-(\d+)$", key)
    return int(match[1]) if match else -1


class CheckpointUploader:
    """Copies finished checkpoints to the store while training goes on, and prunes older ones there and here.

    Args:
        store: the artifact store.
        prefix: key of the stage's checkpoints.
        keep: how many complete checkpoints stay.
        provenance: written into each manifest.
    """

    def __init__(self, store: ArtifactStore, prefix: str, *, keep: int, provenance: dict[str, Any]) -> None:
        self._store = store
        self._prefix = prefix
        self._keep = keep
        self._provenance = provenance
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint-upload")
        self._pending: list[Future[None]] = []
        self._missed: list[Path] = []
        self._protected: int | None = None

    def protect(self, step: int) -> None:
        """Keep the checkpoint of this step (the best so far) however old it becomes, instead of the one before.

        Args:
            step: its step.
        """
        self._protected = step

    def submit(self, directory: Path) -> None:
        """Queue a finished checkpoint folder.

        Args:
            directory: folder named checkpoint-<step>.
        """
        self._pending.append(self._pool.submit(self._upload, directory))

    def _upload(self, directory: Path) -> None:
        self._missed.append(directory)
        for folder in self._wanted(self._missed):
            try:
                self._store.put(folder, f"{self._prefix}/{folder.name}", provenance=self._provenance)
            except PipelineError as error:
                # Training goes on without the store; the next checkpoint, or the wait at the end, catches up.
                log.warning("checkpoint %s could not be stored yet: %s", folder.name, error)
                return
            self._missed.remove(folder)
        self._missed.clear()
        self._prune(directory.parent)

    def _wanted(self, folders: list[Path]) -> list[Path]:
        """Of folders not stored yet, those that would not be pruned at once; the newest first."""
        newest = sorted(folders, key=lambda folder: step_of(folder.name), reverse=True)
        kept = newest[: self._keep]
        return kept + [folder for folder in newest[self._keep :] if step_of(folder.name) == self._protected]

    def _prune(self, local: Path) -> None:
        """Delete what is older than the newest few, here and in the store."""
        try:
            steps = sorted((step_of(key), key) for key in self._store.keys(self._prefix))
            for step, key in steps[: -self._keep]:
                if step != self._protected:
                    self._store.delete(key)
        except PipelineError as error:
            log.warning("old checkpoints could not be deleted yet: %s", error)
            return
        stored = {step for step, _ in steps}
        for folder in local.glob("checkpoint-*"):
            step = step_of(folder.name)
            if step in stored and step != self._protected and step < steps[-self._keep :][0][0]:
                shutil.rmtree(folder, ignore_errors=True)

    def wait(self) -> None:
        """Finish every upload.

        Raises:
            PipelineError: when the newest (or the best) checkpoint still cannot be stored.
        """
        for future in self._pending:
            future.result()
        self._pending.clear()
        for folder in self._wanted(self._missed):
            self._store.put(folder, f"{self._prefix}/{folder.name}", provenance=self._provenance)
        self._missed.clear()
        self._pool.shutdown()

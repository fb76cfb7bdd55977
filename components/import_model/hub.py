"""A model of the Hugging Face hub: its revision resolved to a commit, its files listed, then downloaded.

Called by import_model. Downloads go to the hub's own cache (HF_HOME), where other programs find them too; private and
gated models need HF_TOKEN, mirrors HF_ENDPOINT. Without a network, what that cache holds is used, and said so.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from huggingface_hub import HfApi, constants, get_cached_repo_tree, snapshot_download
from huggingface_hub.errors import (
    CachedRepoTreeNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    IncompleteSnapshotError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from components.errors import BadInputError, PipelineError
from components.storage.disk import disk_errors

log = logging.getLogger("grpo")


@dataclass(frozen=True)
class HubModel:
    """A model at one commit.

    Attributes:
        name: its id.
        revision: branch, tag or commit that was asked for.
        commit: 40 hex digits.
        files: names of its files.
        offline: whether the hub did not answer and its cache told this.
    """

    name: str
    revision: str
    commit: str
    files: tuple[str, ...]
    offline: bool


def resolve(name: str, revision: str | None) -> HubModel:
    """Pin a hub model to a commit.

    Args:
        name: its id.
        revision: branch, tag or commit; None is the main branch.

    Raises:
        BadInputError: there is no such model or revision, or it may not be read.
        PipelineError: the hub does not answer and its cache does not hold the model.
    """
    wanted = revision or constants.DEFAULT_REVISION
    try:
        with _hub_errors(name, wanted):
            info = HfApi().model_info(name, revision=wanted)
    except _UnreachableError as error:
        commit = _cached_commit(name, wanted)
        if commit is None:
            raise PipelineError(str(error)) from error
        log.warning("the hub does not answer; going on with %s at commit %s, downloaded before", name, commit)
        files = tuple(item.path for item in get_cached_repo_tree(name, revision=commit))
        return HubModel(name, wanted, commit, files, offline=True)
    files = tuple(item.rfilename for item in info.siblings or ())
    return HubModel(name, wanted, str(info.sha), files, offline=False)


def download(model: HubModel, files: tuple[str, ...]) -> Path:
    """Download files of a pinned model; what the hub's cache holds is not downloaded again.

    Args:
        model: from `resolve`.
        files: which ones.

    Returns:
        The folder with them.

    Raises:
        BadInputError: they may not be read, or the disk of the hub's cache is full.
        PipelineError: the hub stopped answering.
    """
    try:
        with disk_errors(Path(constants.HF_HUB_CACHE)), _hub_errors(model.name, model.commit):
            # By branch first, so that the hub's cache knows what the branch was when there is no network.
            for revision in (model.revision, model.commit):
                folder = snapshot_download(
                    model.name, revision=revision, allow_patterns=list(files), local_files_only=model.offline
                )
                if Path(folder).name == model.commit:
                    break
            return Path(folder)
    except _UnreachableError as error:
        raise PipelineError(f"{error}; run again: what came is kept") from error


def _cached_commit(name: str, revision: str) -> str | None:
    """The commit that the hub's cache holds for a revision, with its list of files; None when it does not."""
    try:
        folder = snapshot_download(name, revision=revision, local_files_only=True)
    except IncompleteSnapshotError as error:
        # Only the files of the model were ever downloaded: as it should be.
        folder = error.snapshot_path
    except LocalEntryNotFoundError:
        return None
    commit = Path(folder).name
    try:
        get_cached_repo_tree(name, revision=commit)
    except CachedRepoTreeNotFoundError:
        return None
    return commit


class _UnreachableError(Exception):
    """The hub could not be asked."""


@contextmanager
def _hub_errors(name: str, revision: str | None) -> Iterator[None]:
    hub = constants.ENDPOINT
    try:
        yield
    except GatedRepoError as error:
        raise BadInputError(
            f"model.source: {name} is gated; accept its terms at {hub}/{name}, then set HF_TOKEN for that account"
        ) from error
    except RevisionNotFoundError as error:
        raise BadInputError(
            f"model.revision: {name} has no revision {revision!r}; name a branch, tag or commit that {hub}/{name} lists"
        ) from error
    except RepositoryNotFoundError as error:
        raise BadInputError(
            f"model.source: {hub} has no model {name!r} that may be read; check the id, and set HF_TOKEN if it is "
            "private (a relative folder that should exist begins with ./)"
        ) from error
    except HFValidationError as error:
        raise BadInputError(f"model.source: {name!r} is no valid hub id ({error})") from error
    except HfHubHTTPError as error:
        if error.response.status_code in (401, 403):
            raise BadInputError(
                f"model.source: {hub} refuses to give {name} ({error.response.status_code}); set HF_TOKEN to a token "
                "of an account that may read it"
            ) from error
        raise _UnreachableError(
            f"model.source: {hub} answered {error.response.status_code} when asked for {name}; try again later, or set "
            "HF_ENDPOINT to a mirror (and HF_TOKEN for private models)"
        ) from error
    except (
        OfflineModeIsEnabled,
        LocalEntryNotFoundError,
        httpx.HTTPError,
        ConnectionError,
        TimeoutError,
    ) as error:
        reason = "HF_HUB_OFFLINE is set" if isinstance(error, OfflineModeIsEnabled) else type(error).__name__
        raise _UnreachableError(
            f"model.source: {name} is a hub id and {hub} does not answer ({reason}); check the network, set "
            "HF_ENDPOINT to a mirror (and HF_TOKEN for private models), or name a local folder"
        ) from error

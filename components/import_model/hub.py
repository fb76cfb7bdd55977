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
from huggingface_hub import HfApi, constants, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
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
        commit: 40 hex digits.
        files: names of its files.
        cached: folder of the hub's cache that holds it, when the hub could not be asked.
    """

    name: str
    commit: str
    files: tuple[str, ...]
    cached: Path | None = None


def resolve(name: str, revision: str | None) -> HubModel:
    """Pin a hub model to a commit.

    Args:
        name: its id.
        revision: branch, tag or commit; None is the main branch.

    Raises:
        BadInputError: there is no such model or revision, or it may not be read.
        PipelineError: the hub does not answer and its cache does not hold the model.
    """
    try:
        with _hub_errors(name, revision):
            info = HfApi().model_info(name, revision=revision)
    except _UnreachableError as error:
        try:
            folder = Path(snapshot_download(name, revision=revision, local_files_only=True))
        except LocalEntryNotFoundError:
            raise PipelineError(str(error)) from error
        log.warning("%s; going on with %s from %s", error, name, folder)
        files = tuple(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
        return HubModel(name, folder.name, files, folder)
    return HubModel(name, str(info.sha), tuple(item.rfilename for item in info.siblings or ()))


def download(model: HubModel, files: tuple[str, ...]) -> Path:
    """Download files of a pinned model; what the hub's cache holds is not downloaded again.

    Args:
        model: from `resolve`.
        files: which ones.

    Returns:
        The folder with them.

    Raises:
        BadInputError: they may not be read.
        PipelineError: the hub stopped answering.
    """
    if model.cached is not None:
        return model.cached
    try:
        with disk_errors(Path(constants.HF_HUB_CACHE)), _hub_errors(model.name, model.commit):
            return Path(snapshot_download(model.name, revision=model.commit, allow_patterns=list(files)))
    except _UnreachableError as error:
        raise PipelineError(f"{error}; run again: what came is kept") from error


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
    except (
        OfflineModeIsEnabled,
        LocalEntryNotFoundError,
        HfHubHTTPError,
        httpx.HTTPError,
        ConnectionError,
        TimeoutError,
    ) as error:
        reason = "HF_HUB_OFFLINE is set" if isinstance(error, OfflineModeIsEnabled) else type(error).__name__
        raise _UnreachableError(
            f"model.source: {name} is a hub id and {hub} does not answer ({reason}); check the network, set "
            "HF_ENDPOINT to a mirror (and HF_TOKEN for private models), or name a local folder"
        ) from error

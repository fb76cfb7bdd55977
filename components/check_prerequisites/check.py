"""What a run needs of its cluster, looked at before any step works or a GPU is held.

Each check is a function that returns a `Finding`; `check_all` runs every one of them, so that a person mends all faults
at once, and fails the run when one failed. A check that could not be made (no right to list nodes) is told and does not
fail the run. Limits: the pod it runs in is one node's; another node may still be cut off from the store.
"""

import json
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from components.contract.config import ContractConfig
from components.errors import BadInputError, PipelineError
from components.rewards.config import RewardsConfig
from components.storage.config import StoreConfig
from components.storage.references import Reference
from components.storage.store import ArtifactStore, open_store

TIMEOUT_S = 20.0


class State(StrEnum):
    """How a check ended."""

    PASSED = "passed"
    FAILED = "failed"
    UNKNOWN = "not checked"


@dataclass(frozen=True)
class Finding:
    """One check.

    Attributes:
        name: what was looked at.
        state: how it ended.
        message: what was found; of a failure, what to mend as well.
    """

    name: str
    state: State
    message: str


@dataclass(frozen=True)
class Place:
    """Where a run reads something from.

    Attributes:
        field: the config's field that names it.
        kind: a hub model or dataset, objects of a bucket, an artifact of a store, or made by code.
        name: hub id, URI or reference.
        revision: of a hub id.
    """

    field: str
    kind: Literal["hub model", "hub dataset", "s3", "artifact", "generated"]
    name: str
    revision: str | None = None


Check = Callable[[], Finding]


def check_all(checks: Iterable[tuple[str, Check]]) -> list[Finding]:
    """Run all checks.

    Args:
        checks: name and function of each.

    Returns:
        What each found; a check that raised one of our errors has failed with its message.
    """
    findings = []
    for name, check in checks:
        try:
            findings.append(check())
        except PipelineError as error:
            findings.append(Finding(name, State.FAILED, str(error)))
    return findings


def fail_on(findings: list[Finding]) -> None:
    """End the run when a check failed.

    Args:
        findings: from `check_all`.

    Raises:
        BadInputError: with every failure, each naming what to fix.
    """
    failed = [finding for finding in findings if finding.state is State.FAILED]
    if failed:
        lines = "\n".join(f"  {finding.name}: {finding.message}" for finding in failed)
        raise BadInputError(f"{len(failed)} of {len(findings)} prerequisites failed:\n{lines}")


def report(findings: list[Finding]) -> str:
    """The findings as Markdown.

    Args:
        findings: from `check_all`.
    """
    rows = [f"| {f.name} | {f.state} | {f.message.replace('|', '/').replace(chr(10), ' ')} |" for f in findings]
    return "\n".join(["| checked | result | found |", "|---|---|---|", *rows]) + "\n"


def check_store(store: ArtifactStore) -> Finding:
    """Whether the store can be written.

    Args:
        store: the run's.
    """
    store.check_writable()
    return Finding("store", State.PASSED, f"{store.uri} can be written")


def check_mlflow(uri: str) -> Finding:
    """Whether MLflow answers and takes the credentials of the environment (MLFLOW_TRACKING_*).

    Args:
        uri: tracking.uri.
    """
    name = "MLflow"
    if not uri.startswith(("http://", "https://")):
        message = f"tracking.uri: {uri!r} is no server; write http(s)://host of an MLflow server the cluster reaches"
        return Finding(name, State.FAILED, message)
    request = urllib.request.Request(  # noqa: S310 (http checked)
        uri.rstrip("/") + "/api/2.0/mlflow/experiments/search",
        data=json.dumps({"max_results": 1}).encode(),
        headers={"Content-Type": "application/json", **_mlflow_authorization()},
    )
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310
            json.loads(answer.read())
    except urllib.error.HTTPError as error:
        if error.code in (401, 403):
            mend = (
                f"{uri} refuses with {error.code}: give MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD (or "
                "MLFLOW_TRACKING_TOKEN) by resources.secrets; a server behind --allowed-hosts must know this host name"
            )
        else:
            mend = f"{uri} answers {error.code}; is it an MLflow server?"
        return Finding(name, State.FAILED, mend)
    except (urllib.error.URLError, OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        mend = f"tracking.uri: {uri} does not answer ({reason}); check the host name, the Service and NetworkPolicies"
        return Finding(name, State.FAILED, mend)
    return Finding(name, State.PASSED, f"{uri} answers")


def check_place(place: Place, config: StoreConfig) -> Finding:
    """Whether something a run reads is there and may be read.

    Args:
        place: where it is.
        config: S3 options.
    """
    if place.kind == "generated":
        return Finding(place.field, State.PASSED, f"{place.name} is made by the run")
    if place.kind == "artifact":
        reference = Reference.parse(place.name)
        root = reference.uri.rpartition("/")[0]
        manifest = open_store(StoreConfig(uri=root, **config.model_dump(exclude={"uri"}))).read_manifest(reference)
        return Finding(place.field, State.PASSED, f"{place.name}: {len(manifest.files)} files")
    if place.kind == "s3":
        from components.storage.plain import find_source

        found = find_source(place.name, config)
        return Finding(place.field, State.PASSED, f"{place.name}: {len(found.objects)} objects")
    return _check_hub(place)


def check_rewards(rewards: RewardsConfig, contract: ContractConfig) -> Finding:
    """Whether every reward can be loaded where it will run: a person's own file is imported, in a process apart.

    Args:
        rewards: the config's section.
        contract: the config's section.
    """
    from components.rewards.guard import RewardGuard

    with RewardGuard(rewards, contract) as guard:
        names = [reward.name for reward in guard.rewards]
    return Finding("rewards", State.PASSED, f"{', '.join(names)} can be loaded")


def _check_hub(place: Place) -> Finding:
    from huggingface_hub import HfApi
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError

    api = HfApi()
    look = api.model_info if place.kind == "hub model" else api.dataset_info
    hub = os.environ.get("HF_ENDPOINT", "the hub")
    try:
        found = look(place.name, revision=place.revision, timeout=TIMEOUT_S)
    except GatedRepoError:
        mend = f"{place.name} is gated: accept its terms on its page, and give HF_TOKEN by resources.secrets"
    except RevisionNotFoundError:
        mend = f"{place.name} has no revision {place.revision!r}; name a branch, tag or commit that it has"
    except RepositoryNotFoundError:
        mend = f"{place.name} is not there, or private: check the name, or give HF_TOKEN by resources.secrets"
    except (HfHubHTTPError, OSError, ValueError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        mend = (
            f"{hub} cannot be read ({first}); set HF_ENDPOINT to a mirror, or name a folder, which travels by the store"
        )
    else:
        return Finding(place.field, State.PASSED, f"{place.name} at {found.sha}")
    return Finding(place.field, State.FAILED, mend)


def _mlflow_authorization() -> dict[str, str]:
    """The header MLflow's own client would send."""
    import base64

    token = os.environ.get("MLFLOW_TRACKING_TOKEN")
    if token:
        return {"Authorization": f"Bearer {token}"}
    user, password = os.environ.get("MLFLOW_TRACKING_USERNAME"), os.environ.get("MLFLOW_TRACKING_PASSWORD")
    if user and password:
        return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}
    return {}

"""Which artifacts MLflow's runs and registered versions name: what `grpo store gc` must keep.

Called by the `grpo store` commands. Reads tags, parameters and dataset inputs of every run and version, deleted runs
included: they can be restored.
"""

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlflow import MlflowClient

REFERENCE = re.compile(r"(?:file|s3)://[^\s\"'\\]+@sha256:[0-9a-f]{64}")
"""An artifact's reference within a longer text, such as JSON."""

PAGE = 1000
"""Runs asked for at a time."""


def references_in(texts: Iterable[str]) -> set[str]:
    """Every reference within some texts.

    Args:
        texts: plain or JSON.
    """
    return {found for text in texts for found in REFERENCE.findall(text)}


def tracked_references(client: "MlflowClient") -> set[str]:
    """Every artifact that a run or a registered version names.

    Args:
        client: of the tracking server, which is its registry too.
    """
    from mlflow.entities import ViewType

    found: set[str] = set()
    experiments = [each.experiment_id for each in client.search_experiments(view_type=ViewType.ALL)]
    token: str | None = None
    while experiments:
        page = client.search_runs(experiments, run_view_type=ViewType.ALL, max_results=PAGE, page_token=token)
        for run in page:
            sources = [entry.dataset.source for entry in run.inputs.dataset_inputs] if run.inputs else []
            found |= references_in([*run.data.tags.values(), *run.data.params.values(), *sources])
        token = page.token
        if not token:
            break
    token = None
    while True:
        versions = client.search_model_versions(page_token=token)
        for version in versions:
            found |= references_in([*version.tags.values(), version.source or ""])
        token = versions.token
        if not token:
            return found

"""Makes a run config one that pods can use: inputs of this machine go into the S3 store, what stays behind is refused.

Called by `grpo compile` and `grpo submit` before anything is compiled. Afterwards no path of this machine is left in
the config (`refuse_local_paths` looks at every text of it). Refuses a store that is a folder, an MLflow that is a file,
addresses of this machine that no pod reaches, and images without a version.
"""

import ipaddress
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from components.errors import BadInputError
from components.rewards.config import RewardsConfig
from components.storage.store import ArtifactStore, open_store
from components.train_grpo.config import stage_training
from pipeline.config import RunConfig
from pipeline.planning.sweep import VARIED, Sweep
from pipeline.pods import CA_FILE


def config_for_cluster(config: RunConfig, *, store_endpoint: str | None = None) -> RunConfig:
    """The config as the cluster gets it.

    Args:
        config: as the person wrote it, paths absolute.
        store_endpoint: S3 endpoint as this machine reaches it, where the pods use another (store.endpoint_url).

    Raises:
        BadInputError: naming the field and the mend.
        PipelineError: when inputs have to be stored and the store fails.
    """
    refuse_what_pods_cannot_reach(config)
    if config.store.ca_bundle is not None and config.resources.ca_config_map is None:
        raise BadInputError(
            f"store.ca_bundle: {config.store.ca_bundle} is a file of this machine; make a ConfigMap (kubectl create "
            "configmap grpo-ca --from-file=ca.crt=FILE) and write resources.ca_config_map: grpo-ca"
        )
    _check_batches(config)
    if has_local_inputs(config):
        from pipeline.inputs import store_inputs

        store = _store_from_here(config, store_endpoint)
        store.check_writable()
        config = _with_stored_rewards(store_inputs(config, store), store)
    store_section = config.store
    if store_section.ca_bundle is not None:
        store_section = store_section.model_copy(update={"ca_bundle": CA_FILE})
    # Rewards are fetched where no store section is at hand, so that pods have its endpoint in their environment too.
    environment = {**store_section.environment(), **config.resources.environment}
    resources = config.resources.model_copy(update={"environment": environment})
    config = config.model_copy(update={"store": store_section, "resources": resources})
    refuse_local_paths(config)
    return config


def sweep_for_cluster(sweep: Sweep, *, store_endpoint: str | None = None) -> Sweep:
    """A grid as the cluster gets it.

    Args:
        sweep: the grid, paths absolute.
        store_endpoint: S3 endpoint as this machine reaches it, where the pods use another (store.endpoint_url).

    Raises:
        BadInputError: naming the field and the mend.
        PipelineError: when inputs have to be stored and the store fails.
    """
    base = config_for_cluster(sweep.base, store_endpoint=store_endpoint)

    def ready(point: RunConfig) -> RunConfig:
        """The base's config with what the point varies; inputs are stored once, a point's reward files again."""
        _check_batches(point)
        if point.rewards.code_files():
            point = _with_stored_rewards(point, _store_from_here(point, store_endpoint))
        point = base.model_copy(update={name: getattr(point, name) for name in VARIED})
        refuse_local_paths(point)
        return point

    return replace(sweep, base=base).with_configs(ready)


def _store_from_here(config: RunConfig, endpoint: str | None) -> ArtifactStore:
    """The config's store, as this machine reaches it."""
    return open_store(config.store if endpoint is None else config.store.model_copy(update={"endpoint_url": endpoint}))


def _with_stored_rewards(config: RunConfig, store: ArtifactStore) -> RunConfig:
    """The config with its reward files in the store, and no folder of this machine in their names."""
    from pipeline.submission import store_reward_files

    config = store_reward_files(config, store)
    return config.model_copy(update={"rewards": _without_folders(config.rewards)})


def has_local_inputs(config: RunConfig) -> bool:
    """Whether the config names files of this machine (they are looked at: a missing one is refused).

    Args:
        config: the run config.
    """
    try:
        return bool(
            config.model.local_files()
            or config.data.local_files()
            or config.evaluation.local_files()
            or config.rewards.code_files()
        )
    except ValueError as error:
        raise BadInputError(str(error)) from error


def refuse_local_paths(config: RunConfig) -> None:
    """Refuse a config in which a path of this machine is left.

    Args:
        config: the run config, made ready for the cluster.

    Raises:
        BadInputError: naming the first.
    """
    here = (str(Path.home()), str(Path.cwd()))
    for field, text in _texts(config.model_dump(mode="json"), ""):
        if not text.startswith("/") or "\n" in text or text == CA_FILE:
            continue
        if text.startswith(tuple(f"{folder}/" for folder in here if folder != "/")) or os.path.exists(text):  # noqa: PTH110
            raise BadInputError(
                f"{field}: {text} is on this machine, and no pod has it; remove it, or name an s3:// URI"
            )


def refuse_what_pods_cannot_reach(config: RunConfig) -> None:
    """Refuse a store or an MLflow that only this machine has.

    Args:
        config: the run config.

    Raises:
        BadInputError: naming the field and the mend.
    """
    if not config.store.uri.startswith("s3://"):
        raise BadInputError(
            f"store.uri: {config.store.uri} is a folder of this machine, and no pod has it; write store.uri: "
            "s3://bucket/prefix (k8s/ brings an S3 store for clusters without one)"
        )
    if not config.tracking.uri.startswith(("http://", "https://")):
        raise BadInputError(
            f"tracking.uri: {config.tracking.uri} is a file of this machine, and no pod has it; write the URL of an "
            "MLflow server as pods reach it, such as http://grpo-mlflow.grpo.svc:5000"
        )
    for field, url in (("store.endpoint_url", config.store.endpoint_url), ("tracking.uri", config.tracking.uri)):
        if url is not None and _is_loopback(urlsplit(url).hostname or ""):
            more = "; --store-endpoint says how this machine reaches it" if field.startswith("store") else ""
            raise BadInputError(
                f"{field}: {url} is this machine itself, for a pod the pod; write the Service's URL{more}"
            )


def _check_batches(config: RunConfig) -> None:
    """Refuse, before a GPU is held, a batch that the processes of the training cannot share: one process a GPU."""
    wants = config.resources.train_grpo
    processes = config.training.processes or max(1, wants.gpus)
    for training in (config.training, *(stage_training(config.training, stage) for stage in config.stages)):
        training.batch_plan(processes * wants.nodes)


def _is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


def _without_folders(rewards: RewardsConfig) -> RewardsConfig:
    """Stored reward files by their names alone: where they lay on this machine is nobody's business."""
    changes = {}
    for name, reward in rewards.rewards().items():
        file = reward.file()
        if reward.stored is not None and file is not None:
            function = str(reward.use).rpartition(":")[2]
            changes[name] = reward.model_copy(update={"use": f"{file.name}:{function}"})
    return rewards.with_rewards(changes) if changes else rewards


def _texts(value: Any, field: str) -> Iterator[tuple[str, str]]:
    """Every text in nested plain data, with its place."""
    if isinstance(value, str):
        yield field, value
    elif isinstance(value, dict):
        for key, entry in value.items():
            yield from _texts(entry, f"{field}.{key}" if field else str(key))
    elif isinstance(value, list):
        for number, entry in enumerate(value):
            yield from _texts(entry, f"{field}[{number}]")

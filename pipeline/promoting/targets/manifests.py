"""The manifests of a served version: a Deployment and a Service of vLLM, or a KServe InferenceService.

Used by the kubernetes and gitops targets. Built as plain data and not from text templates, so no value can break out of
its place. The version, the weights' URI and their digest are in the manifest, and an init container downloads exactly
those weights and compares every byte before the server starts. Nothing secret is written: credentials come from a
Secret or the service account.
"""

from typing import Any

import yaml

from components.errors import BadInputError
from pipeline.promoting.targets.config import ServingConfig
from pipeline.promoting.targets.target import Served

PORT = 8000
WEIGHTS = "/weights"
"""Where the volume with the weights is mounted."""

PREFIX = "grpo-pipeline/"
"""Of the annotations."""

FIELD_MANAGER = "grpo"

Manifest = dict[str, Any]


def render(served: Served, config: ServingConfig) -> list[Manifest]:
    """The objects that serve a version.

    Args:
        served: the version.
        config: the serving config.

    Raises:
        BadInputError: the weights are not where a cluster can reach them.
    """
    if not served.weights.uri.startswith("s3://"):
        raise BadInputError(
            f"{served.name}/{served.version} lies in {served.weights.uri}, which no cluster reaches; run with "
            "store.uri: s3://bucket/prefix to serve on Kubernetes"
        )
    return _kserve(served, config) if config.kubernetes.kind == "kserve" else _deployment(served, config)


def to_yaml(objects: list[Manifest]) -> str:
    """Objects as the documents of one YAML file."""
    return yaml.safe_dump_all(objects, sort_keys=False, explicit_start=True)


def annotations(served: Served) -> dict[str, str]:
    """What says which version an object serves."""
    return {
        f"{PREFIX}model": served.name,
        f"{PREFIX}version": served.version,
        f"{PREFIX}weights": str(served.weights),
    }


def object_name(served: Served) -> str:
    """Name of the objects: the same for all versions of a model, so that one replaces the other."""
    return f"grpo-{served.model}"


def _deployment(served: Served, config: ServingConfig) -> list[Manifest]:
    name, cluster = object_name(served), config.kubernetes
    labels = {"app.kubernetes.io/name": name, "app.kubernetes.io/managed-by": FIELD_MANAGER}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(served, config, labels),
        "spec": {
            "replicas": cluster.replicas,
            "selector": {"matchLabels": {"app.kubernetes.io/name": name}},
            # The old pods serve until the new ones are ready.
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "template": {
                "metadata": {"labels": labels, "annotations": annotations(served)},
                "spec": _pod(served, config, container="server"),
            },
        },
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(served, config, labels),
        "spec": {
            "selector": {"app.kubernetes.io/name": name},
            "ports": [{"name": "http", "port": PORT, "targetPort": "http", "protocol": "TCP"}],
        },
    }
    return [deployment, service]


def _kserve(served: Served, config: ServingConfig) -> list[Manifest]:
    name, cluster = object_name(served), config.kubernetes
    labels = {"app.kubernetes.io/name": name, "app.kubernetes.io/managed-by": FIELD_MANAGER}
    predictor = {
        "minReplicas": cluster.replicas,
        "maxReplicas": cluster.replicas,
        "annotations": annotations(served),
        **_pod(served, config, container="kserve-container"),
    }
    return [
        {
            "apiVersion": "serving.kserve.io/v1beta1",
            "kind": "InferenceService",
            "metadata": _metadata(served, config, labels),
            "spec": {"predictor": predictor},
        }
    ]


def _metadata(served: Served, config: ServingConfig, labels: dict[str, str]) -> Manifest:
    return {
        "name": object_name(served),
        "namespace": config.kubernetes.namespace,
        "labels": labels,
        "annotations": annotations(served),
    }


def _pod(served: Served, config: ServingConfig, *, container: str) -> Manifest:
    cluster = config.kubernetes
    resources: dict[str, dict[str, str]] = {"requests": {"cpu": cluster.cpu, "memory": cluster.memory}}
    resources["limits"] = {"memory": cluster.memory}
    if cluster.gpus:
        resources["limits"]["nvidia.com/gpu"] = str(cluster.gpus)
    environment = [{"name": name, "value": value} for name, value in served.store.environment().items()]
    secret = [{"secretRef": {"name": cluster.secret}}] if cluster.secret else []
    mounts = [{"name": "weights", "mountPath": WEIGHTS}, {"name": "tmp", "mountPath": "/tmp"}]  # noqa: S108
    security = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": True,
        "runAsUser": 1000,
    }
    fetch: Manifest = {
        "name": "fetch-weights",
        "image": cluster.fetch_image,
        "command": ["python", "-m", "components.storage", "fetch"],
        "args": [str(served.weights), f"{WEIGHTS}/{served.model}"],
        "env": [*environment, {"name": "HOME", "value": "/tmp"}],  # noqa: S108
        "resources": {"requests": {"cpu": "500m", "memory": "512Mi"}, "limits": {"memory": "1Gi"}},
        "securityContext": {**security, "readOnlyRootFilesystem": True},
        "volumeMounts": mounts,
    }
    if secret:
        fetch["envFrom"] = secret
    server: Manifest = {
        "name": container,
        "image": cluster.image,
        "command": ["python3", "-m", "vllm.entrypoints.openai.api_server"],
        "args": [
            f"--model={WEIGHTS}/{served.model}",
            f"--served-model-name={served.model}",
            f"--dtype={config.dtype or served.dtype}",
            "--host=0.0.0.0",
            f"--port={PORT}",
            *cluster.arguments,
        ],
        "env": [
            {"name": "HF_HUB_OFFLINE", "value": "1"},
            {"name": "HOME", "value": "/tmp"},  # noqa: S108
            {"name": "VLLM_NO_USAGE_STATS", "value": "1"},
        ],
        "ports": [{"name": "http", "containerPort": PORT, "protocol": "TCP"}],
        "startupProbe": {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": 5, "failureThreshold": 240},
        "readinessProbe": {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": 5},
        "livenessProbe": {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": 20, "failureThreshold": 6},
        "resources": resources,
        "securityContext": security,
        "volumeMounts": [*mounts, {"name": "shm", "mountPath": "/dev/shm"}],  # noqa: S108
    }
    pod: Manifest = {
        "automountServiceAccountToken": False,
        "securityContext": {"fsGroup": 1000, "seccompProfile": {"type": "RuntimeDefault"}},
        "initContainers": [fetch],
        "containers": [server],
        "volumes": [
            {"name": "weights", "emptyDir": {"sizeLimit": cluster.storage}},
            {"name": "tmp", "emptyDir": {}},
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "2Gi"}},
        ],
    }
    if cluster.service_account:
        pod["serviceAccountName"] = cluster.service_account
        pod["automountServiceAccountToken"] = True
    return pod

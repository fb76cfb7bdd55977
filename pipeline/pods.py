"""What a step's pod asks of Kubernetes, written into the compiled pipeline's second document through kfp-kubernetes.

Called by graph.py for a pipeline that a cluster runs; KFP's local runners ignore all of it. Limits of kfp-kubernetes
2.17: no PriorityClass (Kueue's stands in), no ephemeral-storage request, no read-only root file system, no service
account of a single pod (the run has one, see cluster.py).
"""

import json
from typing import Any

from components.train_grpo.train_job import JOB_VARIABLE
from pipeline.resources import ResourcesConfig

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
PRIORITY_LABEL = "kueue.x-k8s.io/priority-class"
STEP_LABEL = "grpo-pipeline/step"
"""Label of every pod of ours; the NetworkPolicies in k8s/ select by it."""

WORK_FOLDER = "/work"
CACHE_FOLDER = "/cache"
"""The folders the images write to (docker/Dockerfile)."""

CA_FOLDER = "/etc/grpo/ca"
CA_FILE = f"{CA_FOLDER}/ca.crt"
CA_VARIABLES = ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE")

MAX_BACKOFF = "3600s"


def ask_kubernetes(task: Any, resources: ResourcesConfig, step: str) -> None:
    """Write what a step asks of Kubernetes into its task.

    Args:
        task: the KFP task.
        resources: the config section.
        step: the step's name.
    """
    from kfp import kubernetes

    wants = resources.pod(step)
    kubernetes.add_pod_label(task, STEP_LABEL, step)
    kubernetes.set_security_context(
        task, run_as_user=resources.run_as_user, run_as_group=resources.run_as_user, run_as_non_root=True
    )
    kubernetes.set_timeout(task, 60 * wants.timeout_minutes)
    if wants.retries:
        task.set_retry(
            wants.retries,
            backoff_duration=f"{wants.backoff_seconds}s",
            backoff_factor=2.0,
            backoff_max_duration=MAX_BACKOFF,
        )
    for name, value in sorted(resources.environment.items()):
        task.set_env_variable(name, value)
    if resources.image_pull_secrets:
        kubernetes.set_image_pull_secrets(task, list(resources.image_pull_secrets))
    for key, value in wants.node_selector.items():
        kubernetes.add_node_selector(task, key, value)
    for taint in wants.tolerations:
        kubernetes.add_toleration(
            task,
            key=taint.key,
            operator=taint.operator,
            value=taint.value,
            effect=taint.effect,
            toleration_seconds=taint.seconds,
        )
    if wants.shared_memory:
        kubernetes.empty_dir_mount(
            task,
            volume_name="shared-memory",
            mount_path="/dev/shm",  # noqa: S108 (shared memory, in the pod)
            medium="Memory",
            size_limit=wants.shared_memory,
        )
    work = f"{WORK_FOLDER}/{step}"
    if wants.scratch or resources.cache_claim:
        # A folder of the step's own (components/steps.py): one that a mount below it made would be root's.
        kubernetes.empty_dir_mount(task, volume_name="work", mount_path=work, size_limit=wants.scratch)
    if resources.cache_claim:
        # Where a step keeps what it fetched. Once only: KFP makes a volume of each mount, all of one name.
        kubernetes.mount_pvc(task, pvc_name=resources.cache_claim, mount_path=f"{work}/cache")
        task.set_env_variable("GRPO_CACHE", f"{work}/cache")
        task.set_env_variable("HF_HOME", f"{work}/cache/huggingface")
    if resources.ca_config_map:
        kubernetes.use_config_map_as_volume(task, config_map_name=resources.ca_config_map, mount_path=CA_FOLDER)
        for variable in CA_VARIABLES:
            task.set_env_variable(variable, CA_FILE)
    for secret in resources.secrets_of(step):
        keys: dict[str, str] = {}
        for variable, key in sorted(secret.variables.items()):
            # kfp-kubernetes takes key -> variable: a key that feeds two variables needs a second entry.
            if key in keys:
                kubernetes.use_secret_as_env(task, secret_name=secret.name, secret_key_to_env={key: variable})
            else:
                keys[key] = variable
        kubernetes.use_secret_as_env(task, secret_name=secret.name, secret_key_to_env=keys)
    if resources.step(step).nodes > 1:
        task.set_env_variable(JOB_VARIABLE, json.dumps(train_job(resources, step), sort_keys=True))
    queue, priority = resources.queue_of(step), resources.priority_class_of(step)
    if queue and resources.step(step).nodes == 1:
        kubernetes.add_pod_label(task, QUEUE_LABEL, queue)
        if priority:
            kubernetes.add_pod_label(task, PRIORITY_LABEL, priority)


def train_job(resources: ResourcesConfig, step: str) -> dict[str, Any]:
    """What the nodes of a training ask for, as components/train_grpo/train_job.py takes it.

    Args:
        resources: the config section.
        step: the step's name.
    """
    wants = resources.step(step)
    volumes: list[dict[str, Any]] = []
    if wants.shared_memory:
        empty = {"medium": "Memory", "sizeLimit": wants.shared_memory}
        volumes.append({"volume": {"name": "shared-memory", "emptyDir": empty}, "path": "/dev/shm"})  # noqa: S108
    if wants.scratch:
        volumes.append({"volume": {"name": "work", "emptyDir": {"sizeLimit": wants.scratch}}, "path": WORK_FOLDER})
    if resources.cache_claim:
        claim = {"claimName": resources.cache_claim}
        volumes.append({"volume": {"name": "cache", "persistentVolumeClaim": claim}, "path": CACHE_FOLDER})
    environment = dict(resources.environment)
    if resources.ca_config_map:
        volumes.append({"volume": {"name": "ca", "configMap": {"name": resources.ca_config_map}}, "path": CA_FOLDER})
        environment |= dict.fromkeys(CA_VARIABLES, CA_FILE)
    queue, priority = resources.queue_of(step), resources.priority_class_of(step)
    labels = {QUEUE_LABEL: queue, PRIORITY_LABEL: priority}
    tolerations = []
    for taint in wants.tolerations:
        given = taint.model_dump(exclude_none=True)
        if "seconds" in given:
            given["tolerationSeconds"] = given.pop("seconds")
        tolerations.append(given)
    return {
        "image": resources.images.train,
        "nodes": wants.nodes,
        "cpu": wants.cpu,
        "memory": wants.memory,
        "gpus": wants.gpus,
        "gpu_type": wants.gpu_type,
        "timeout_s": 60 * wants.timeout_minutes,
        "environment": environment,
        "secrets": [{"name": secret.name, "variables": secret.variables} for secret in resources.secrets_of(step)],
        "labels": {key: value for key, value in labels.items() if value},
        "podLabels": {STEP_LABEL: step},
        "nodeSelector": dict(wants.node_selector),
        "tolerations": tolerations,
        "imagePullSecrets": [{"name": name} for name in resources.image_pull_secrets],
        "serviceAccountName": resources.service_account,
        "volumes": volumes,
    }

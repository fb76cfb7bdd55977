"""Training on several nodes: the step hands it to a TrainJob of Kubeflow Trainer, follows it and removes it.

Called by train.py in the step's own pod, which holds the lease and no GPU, when the environment says how
(GRPO_TRAIN_JOB, written by pipeline/pods.py where resources.train_grpo.nodes is above 1). Every node runs torchrun,
every rank node.py, which trains as on one machine; what comes of it is left as a note in the store. A job that an
earlier try of this step left running is taken up again. Limits: needs Kubeflow Trainer 2.2 or later and the
TrainingRuntime of k8s/overlays/gpu.
"""

import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from components.errors import BadInputError, GateFailedError, PipelineError, ResumableError
from components.storage.references import Reference
from components.storage.store import ArtifactStore, NoteChangedError

if TYPE_CHECKING:
    from components.train_grpo.train import TrainingInputs

JOB_VARIABLE = "GRPO_TRAIN_JOB"
GIVEN_VARIABLE = "GRPO_TRAINING"
RUNTIME = "grpo-train"
API = "trainer.kubeflow.org/v1alpha1"
MANAGER = "grpo-pipeline/step"
"""Owner of our runtime patch."""

POLL_SECONDS = 10.0
AGAIN = "again"
ERRORS = {kind.__name__: kind for kind in (PipelineError, BadInputError, GateFailedError, ResumableError)}
NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
log = logging.getLogger(__name__)


class Jobs(Protocol):
    """What is asked of a cluster."""

    def get(self, name: str) -> dict[str, Any] | None:
        """A TrainJob, None when there is none."""
        ...

    def create(self, manifest: dict[str, Any]) -> None:
        """Make a TrainJob."""
        ...

    def delete(self, name: str) -> None:
        """Remove a TrainJob and its pods; no error when there is none."""
        ...

    def log_lines(self, name: str) -> Iterator[str]:
        """Lines of the first node's log, from now to its end."""
        ...


def run_in_job(
    inputs: "TrainingInputs", store: ArtifactStore, *, prefix: str, key: str, jobs: Jobs | None = None
) -> tuple[Reference, str]:
    """Train on several nodes.

    Args:
        inputs: everything the training depends on.
        store: the artifact store.
        prefix: key of the training in the store.
        key: the training hash.
        jobs: the cluster; None takes the one this pod is in.

    Returns:
        The adapter's reference and the MLflow run's id.

    Raises:
        PipelineError: of the kind that the nodes ended with.
        ResumableError: when this step was told to stop; the nodes save a checkpoint first.
    """
    asked = json.loads(os.environ[JOB_VARIABLE])
    jobs = jobs or ClusterJobs()
    name = f"grpo-{key[:24]}"
    given = given_to_nodes(inputs, store, prefix=prefix, key=key)
    with _told_to_stop() as stopped:
        try:
            while True:
                _begin(jobs, name, job_manifest(name, asked, given), store, key)
                _follow(jobs, name, stopped)
                said = read_said(store, key)
                if said is None or not said.get(AGAIN):
                    break
                jobs.delete(name)
        finally:
            jobs.delete(name)
    if stopped.is_set():
        raise ResumableError("stopped by a signal; the nodes saved, the same command goes on from there")
    if said is None:
        raise PipelineError(
            f"the TrainJob {name} ended without a word (a node was lost, killed, or out of memory); its pods' events "
            "say more, the same command goes on from the last checkpoint"
        )
    if "error" in said:
        raise ERRORS[said["error"]](said["message"])
    return Reference.parse(said["reference"]), str(said["run_id"])


def job_manifest(name: str, asked: Mapping[str, Any], given: str) -> dict[str, Any]:
    """The TrainJob.

    Args:
        name: its name.
        asked: what pipeline/pods.py wrote: nodes and what each asks for.
        given: from `given_to_nodes`.
    """
    environment = [{"name": key, "value": value} for key, value in sorted(asked["environment"].items())]
    environment += [
        {"name": variable, "valueFrom": {"secretKeyRef": {"name": secret["name"], "key": key}}}
        for secret in asked["secrets"]
        for variable, key in sorted(secret["variables"].items())
    ]
    environment.append({"name": GIVEN_VARIABLE, "value": given})
    quantities = {"cpu": asked["cpu"], "memory": asked["memory"]}
    if asked["gpus"]:
        quantities[asked["gpu_type"]] = str(asked["gpus"])
    pod: dict[str, Any] = {}
    for field in ("nodeSelector", "tolerations", "imagePullSecrets"):
        if asked[field]:
            pod[field] = asked[field]
    if asked["serviceAccountName"]:
        pod["serviceAccountName"] = asked["serviceAccountName"]
    if asked["volumes"]:
        pod["volumes"] = [volume["volume"] for volume in asked["volumes"]]
        mounts = [{"name": v["volume"]["name"], "mountPath": v["path"]} for v in asked["volumes"]]
        # The runtime's own volume of that name is replaced, and is mounted already.
        mounts = [mount for mount in mounts if mount["name"] not in ("cache", "work", "shared-memory")]
        if mounts:
            pod["containers"] = [{"name": "node", "volumeMounts": mounts}]
    node = {
        "name": "node",
        "template": {"spec": {"template": {"metadata": {"labels": asked["podLabels"]}, "spec": pod}}},
    }
    return {
        "apiVersion": API,
        "kind": "TrainJob",
        "metadata": {"name": name, "labels": asked["labels"], **_owned_by_this_pod()},
        "spec": {
            "runtimeRef": {"apiGroup": API.split("/")[0], "kind": "TrainingRuntime", "name": RUNTIME},
            "activeDeadlineSeconds": asked["timeout_s"],
            "trainer": {
                "image": asked["image"],
                "command": ["torchrun", "-m", "components.train_grpo.node"],
                "numNodes": asked["nodes"],
                "numProcPerNode": max(1, asked["gpus"]),
                "resourcesPerNode": {"requests": quantities, "limits": quantities},
                "env": environment,
            },
            "runtimePatches": [
                {"manager": MANAGER, "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [node]}}}}
            ],
        },
    }


def given_to_nodes(inputs: "TrainingInputs", store: ArtifactStore, *, prefix: str, key: str) -> str:
    """Everything a rank needs, as JSON: the sections as the step got them, and the store.

    Args:
        inputs: everything the training depends on.
        store: the artifact store.
        prefix: key of the training in the store.
        key: the training hash.
    """
    sections = {
        "run": json.dumps({"name": inputs.run_name, "seed": inputs.seed, "attempt": inputs.attempt}),
        "model": inputs.model.to_json(),
        "base": str(inputs.base),
        "dataset": str(inputs.dataset),
        "contract": inputs.contract.to_json(),
        "rewards": inputs.rewards.to_json(),
        "training": inputs.training.to_json(),
        "lora": inputs.lora.to_json() if inputs.lora else "null",
        "stages": json.dumps([stage.model_dump(mode="json") for stage in inputs.stages]),
        "tracking": inputs.tracking.to_json(),
        "code": inputs.code,
    }
    return json.dumps({"sections": sections, "store": store.config.to_json(), "prefix": prefix, "key": key})


def read_said(store: ArtifactStore, key: str) -> dict[str, Any] | None:
    """How the nodes say that it ended; None while they say nothing.

    Args:
        store: the artifact store.
        key: the training hash.
    """
    note = store.read_note(_note(key))
    said: dict[str, Any] | None = json.loads(note.content) if note else None
    return said


def say(store: ArtifactStore, key: str, words: Mapping[str, Any]) -> None:
    """Leave how it ended; the first rank that has something to say is heard.

    Args:
        store: the artifact store.
        key: the training hash.
        words: `reference` and `run_id`, or `error` and `message`, or `again`.
    """
    with suppress(NoteChangedError):
        store.write_note(_note(key), json.dumps(dict(words)).encode(), replaces=None)


class ClusterJobs:
    """TrainJobs of the namespace this pod is in."""

    def __init__(self) -> None:
        """Take the pod's service account.

        Raises:
            BadInputError: outside a cluster.
        """
        from kubernetes import client, config
        from kubernetes.config.config_exception import ConfigException

        try:
            config.load_incluster_config()
            self._namespace = NAMESPACE_FILE.read_text(encoding="utf-8").strip()
        except (ConfigException, OSError) as error:
            raise BadInputError(
                f"resources.train_grpo.nodes: training on several nodes needs a cluster, and this is no pod ({error}); "
                "write nodes: 1"
            ) from error
        self._custom, self._core = client.CustomObjectsApi(), client.CoreV1Api()

    def get(self, name: str) -> dict[str, Any] | None:
        """See `Jobs.get`."""
        return self._call(lambda: self._custom.get_namespaced_custom_object(*self._place(), name))

    def create(self, manifest: dict[str, Any]) -> None:
        """See `Jobs.create`."""
        self._call(lambda: self._custom.create_namespaced_custom_object(*self._place(), manifest), missing=False)

    def delete(self, name: str) -> None:
        """See `Jobs.delete`."""
        policy = "Foreground"
        self._call(
            lambda: self._custom.delete_namespaced_custom_object(*self._place(), name, propagation_policy=policy)
        )
        while self.get(name) is not None:
            time.sleep(1)

    def log_lines(self, name: str) -> Iterator[str]:
        """See `Jobs.log_lines`."""
        selector = f"jobset.sigs.k8s.io/jobset-name={name},batch.kubernetes.io/job-completion-index=0"
        pods = self._call(lambda: self._core.list_namespaced_pod(self._namespace, label_selector=selector)).items
        if not pods or pods[0].status.phase == "Pending":
            return
        answer = self._call(
            lambda: self._core.read_namespaced_pod_log(
                pods[0].metadata.name, self._namespace, container="node", follow=True, _preload_content=False
            )
        )
        for line in answer or []:
            yield line.decode(errors="replace").rstrip("\n")

    def _place(self) -> tuple[str, str, str, str]:
        group, version = API.split("/")
        return group, version, self._namespace, "trainjobs"

    def _call(self, call: Any, *, missing: bool = True) -> Any:
        from kubernetes.client.exceptions import ApiException
        from urllib3.exceptions import HTTPError

        try:
            return call()
        except ApiException as error:
            if error.status == 404 and missing:
                return None
            if error.status in (403, 404):
                raise BadInputError(
                    f"TrainJobs cannot be used ({error.status} {error.reason}): install Kubeflow Trainer and apply "
                    "k8s/overlays/gpu (role grpo-runner, runtime grpo-train), or write resources.train_grpo.nodes: 1"
                ) from error
            raise PipelineError(f"the Kubernetes API answers {error.status} {error.reason}") from error
        except HTTPError as error:
            raise PipelineError(f"the Kubernetes API does not answer ({error})") from error


def _begin(jobs: Jobs, name: str, manifest: dict[str, Any], store: ArtifactStore, key: str) -> None:
    """Make the job, or take up one that is running."""
    there = jobs.get(name)
    if there is not None and _ended(there) is None:
        log.info("TrainJob %s is running already; taken up", name)
        return
    if there is not None:
        jobs.delete(name)
    note = store.read_note(_note(key))
    if note is not None:
        store.delete_note(_note(key), tag=note.tag)
    jobs.create(manifest)
    log.info("TrainJob %s made: %d nodes", name, manifest["spec"]["trainer"]["numNodes"])


def _follow(jobs: Jobs, name: str, stopped: threading.Event) -> None:
    """Wait for the job's end, its first node's log on the way."""
    reader = threading.Thread(target=lambda: None)
    reader.start()
    while not stopped.is_set():
        if not reader.is_alive():
            reader = threading.Thread(target=_print_log, args=(jobs, name), name="log", daemon=True)
            reader.start()
        try:
            job = jobs.get(name)
        except BadInputError:
            raise
        except PipelineError as error:
            log.warning("%s; asked again", error)
            job = {}
        if job is None:
            return
        if job and _ended(job) is not None:
            reader.join(timeout=POLL_SECONDS)
            return
        stopped.wait(POLL_SECONDS)


def _print_log(jobs: Jobs, name: str) -> None:
    try:
        for line in jobs.log_lines(name):
            print(line, file=sys.stderr, flush=True)
    except PipelineError as error:
        log.warning("the log of %s cannot be read: %s", name, error)
    time.sleep(min(1.0, POLL_SECONDS))


def _ended(job: Mapping[str, Any]) -> str | None:
    """`Complete` or `Failed`, None while it goes on."""
    for condition in job.get("status", {}).get("conditions", []):
        if condition["type"] in ("Complete", "Failed") and condition["status"] == "True":
            return str(condition["type"])
    return None


@contextmanager
def _told_to_stop() -> Iterator[threading.Event]:
    """An event that SIGTERM and SIGINT set."""
    stopped = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stopped
        return
    numbers = (signal.SIGTERM, signal.SIGINT)
    previous = {number: signal.signal(number, lambda *_: stopped.set()) for number in numbers}
    try:
        yield stopped
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _owned_by_this_pod() -> dict[str, Any]:
    """Makes the cluster remove the job when this pod is removed (KFP tells a pod its name and uid)."""
    name, uid = os.environ.get("KFP_POD_NAME"), os.environ.get("KFP_POD_UID")
    if not (name and uid):
        return {}
    return {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid}]}


def _note(key: str) -> str:
    return f"train-jobs/{key[:32]}.json"

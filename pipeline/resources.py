"""The `resources` section: what each step asks of a cluster, and its image. Ignored by the local runner.

Read by graph.py and pods.py (what is written into the compiled pipeline), by cluster.py (the run's service account) and
by train_nodes.py (training on several nodes). Limits: Secrets are named, never held; KFP has no field for a pod's
PriorityClass, so `priority_class` is Kueue's and needs a `queue`.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from components.sections import Section

Quantity = Annotated[str, Field(pattern=r"^\d+(\.\d+)?(Ki|Mi|Gi|Ti|K|M|G|T)?$")]
Name = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=253)]
"""Of a Kubernetes object."""

LABEL_KEY = re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
DIGEST = re.compile(r"@sha256:[0-9a-f]{64}$")
CREDENTIAL = re.compile(r"SECRET|TOKEN|PASSWORD|PASSWD|API_?KEY|ACCESS_KEY|CREDENTIAL", re.IGNORECASE)
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class TolerationConfig(Section):
    """A taint that a pod bears."""

    key: str | None = None
    """Key of the taint; null, with `operator: Exists`, bears every taint."""

    operator: Literal["Equal", "Exists"] = "Equal"
    """`Equal` compares the value, `Exists` does not."""

    value: str | None = None
    """Value of the taint, for `Equal`."""

    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """Effect of the taint; null means any."""

    seconds: Annotated[int, Field(ge=0)] | None = None
    """For NoExecute: how long the pod stays after the taint appears."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.operator == "Exists" and self.value is not None:
            raise ValueError("tolerations: operator Exists takes no value; remove value, or write operator: Equal")
        if self.operator == "Equal" and self.key is None:
            raise ValueError("tolerations: operator Equal needs a key; write key, or operator: Exists")
        if self.seconds is not None and self.effect != "NoExecute":
            raise ValueError("tolerations: seconds applies to effect: NoExecute only; remove it, or write that effect")
        return self


class StepResources(Section):
    """What one step's pod asks for."""

    cpu: Annotated[str, Field(pattern=r"^\d+(\.\d+)?m?$")] = "2"
    """CPU cores (Kubernetes quantity)."""

    memory: Quantity = "4Gi"
    """Memory (Kubernetes quantity)."""

    gpus: Annotated[int, Field(ge=0)] = 0
    """GPUs of the pod."""

    gpu_type: str = "nvidia.com/gpu"
    """Resource name of the accelerator."""

    nodes: Annotated[int, Field(ge=1)] = 1
    """Nodes to train on, for train_grpo only: above 1 the step hands the training to a TrainJob of Kubeflow Trainer
    with so many pods, each with the CPU, memory and GPUs said here."""

    shared_memory: Quantity | None = None
    """Size of /dev/shm, taken from the pod's memory (NCCL and data loaders need it); null leaves the node's 64 MiB."""

    scratch: Quantity | None = None
    """Size limit of the work folder, on the node's disk: the pod is evicted above it. Null sets none."""

    node_selector: dict[str, str] = {}
    """Labels a node must have, such as {nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3}."""

    tolerations: list[TolerationConfig] = []
    """Taints the pod bears, such as [{key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}]."""

    queue: Name | None = None
    """Kueue LocalQueue of this step; null takes `resources.queue`."""

    priority_class: Name | None = None
    """Kueue WorkloadPriorityClass of this step; null takes `resources.priority_class`."""

    cache: bool = True
    """Whether an earlier result with the same inputs and code may be used; training and registration never are."""

    timeout_minutes: Annotated[int, Field(ge=1)] = 720
    """The pod is ended after this long."""

    retries: Annotated[int, Field(ge=0)] = 2
    """How often the platform starts a failed pod again (training goes on from its last checkpoint)."""

    backoff_seconds: Annotated[int, Field(ge=1)] = 30
    """Time before the first such start; it doubles each time, up to an hour."""

    @field_validator("node_selector")
    @classmethod
    def _labels(cls, labels: dict[str, str]) -> dict[str, str]:
        for key, value in labels.items():
            if not LABEL_KEY.fullmatch(key) or not LABEL_VALUE.fullmatch(value):
                raise ValueError(
                    f"node_selector: {key}: {value} is no Kubernetes label; see `kubectl get nodes -L KEY`"
                )
        return labels


class SecretConfig(Section):
    """A Kubernetes Secret whose values steps get as environment variables."""

    name: Name
    """Name of the Secret, in the namespace the run is in."""

    variables: Annotated[dict[str, str], Field(min_length=1)]
    """Environment variable -> key of the Secret, such as {AWS_ACCESS_KEY_ID: access-key}."""

    steps: list[str] = []
    """Steps that get it; empty means all."""

    @field_validator("variables")
    @classmethod
    def _variable_names(cls, variables: dict[str, str]) -> dict[str, str]:
        for name in variables:
            if not VARIABLE.fullmatch(name):
                raise ValueError(
                    f"variables: {name!r} is no name of an environment variable; use letters, digits and _"
                )
        return variables


class ImagesConfig(Section):
    """Container images by step family; pin them by digest on a cluster."""

    data: str = "registry.example.com/grpo/data:0.1.0"
    """Import, dataset preparation, reward smoke test."""

    train: str = "registry.example.com/grpo/train:0.1.0"
    """Training."""

    merge: str = "registry.example.com/grpo/merge:0.1.0"
    """Merge."""

    evaluate: str = "registry.example.com/grpo/evaluate:0.1.0"
    """Evaluation and verdict."""

    registry: str = "registry.example.com/grpo/registry:0.1.0"
    """Registration."""

    @field_validator("*")
    @classmethod
    def _says_which(cls, image: str) -> str:
        name, colon, tag = image.rsplit("/", 1)[-1].partition("@")[0].partition(":")
        if not name or (not DIGEST.search(image) and (not colon or tag in ("", "latest"))):
            raise ValueError(
                f"{image!r} does not say which version it is (latest moves); write a digest, as in "
                "registry.example.com/grpo/train@sha256:..., or a version's tag"
            )
        return image


class ResourcesConfig(Section):
    """Images, and what each step's pod asks for."""

    images: ImagesConfig = ImagesConfig()
    """Container images by step family."""

    image_pull_secrets: list[Name] = []
    """Secrets to pull the images with."""

    service_account: Name | None = None
    """Service account of the run's pods; null takes the installation's own (pipeline-runner)."""

    secrets: list[SecretConfig] = []
    """Secrets whose values steps get as environment variables: the store's and MLflow's credentials, HF_TOKEN. None is
    needed where the service account gives access."""

    environment: dict[str, str] = {}
    """Environment variables of all steps, such as {HF_ENDPOINT: https://hub.example.com}; credentials belong into
    `secrets`."""

    ca_config_map: Name | None = None
    """ConfigMap with a `ca.crt` that S3 and MLflow are checked with; `store.ca_bundle` is a file of your machine, and
    no pod has it."""

    cache_claim: Name | None = None
    """PersistentVolumeClaim for downloaded models and artifacts, shared by the steps (k8s/ makes one); null downloads
    into each pod."""

    queue: Name | None = None
    """Kueue LocalQueue of all steps; null leaves Kueue out."""

    priority_class: Name | None = None
    """Kueue WorkloadPriorityClass of all steps."""

    autoscaled: bool = False
    """Whether GPU nodes come when they are asked for: a node that is missing when the run starts is then told and fails
    nothing."""

    run_as_user: Annotated[int, Field(ge=1)] = 10001
    """User and group of the containers; never root."""

    check_prerequisites: StepResources = StepResources(cpu="1", memory="4Gi", timeout_minutes=30, retries=0)
    """Pod of check_prerequisites, the first step on a cluster."""

    import_model: StepResources = StepResources(memory="8Gi")
    """Pod of import_model."""

    prepare_dataset: StepResources = StepResources()
    """Pod of prepare_dataset."""

    smoke_test_rewards: StepResources = StepResources(memory="8Gi")
    """Pod of smoke_test_rewards."""

    train_grpo: StepResources = StepResources(cpu="8", memory="32Gi", gpus=1)
    """Pod of train_grpo."""

    merge_lora: StepResources = StepResources(cpu="4", memory="16Gi")
    """Pod of merge_lora."""

    evaluate_holdout: StepResources = StepResources(cpu="4", memory="16Gi", gpus=1)
    """Pod of evaluate_holdout."""

    judge_candidate: StepResources = StepResources()
    """Pod of judge_candidate."""

    register_model: StepResources = StepResources()
    """Pod of register_model."""

    choose_winner: StepResources = StepResources()
    """Pod of choose_winner (sweeps only)."""

    @model_validator(mode="before")
    @classmethod
    def _over_the_steps_own_defaults(cls, values: Any) -> Any:
        """What is not said of a step stays that step's default: `train_grpo: {gpus: 4}` keeps its memory."""
        if not isinstance(values, Mapping):
            return values
        merged = dict(values)
        for name, field in cls.model_fields.items():
            if isinstance(field.default, StepResources) and isinstance(merged.get(name), Mapping):
                merged[name] = {**field.default.model_dump(exclude_defaults=True), **merged[name]}
        return merged

    @field_validator("environment")
    @classmethod
    def _no_credentials(cls, variables: dict[str, str]) -> dict[str, str]:
        for name in variables:
            if not VARIABLE.fullmatch(name):
                raise ValueError(f"environment: {name!r} is no name of a variable; use letters, digits and _")
            if CREDENTIAL.search(name):
                raise ValueError(
                    f"environment: {name} looks like a credential, and everybody could read it in the compiled "
                    "pipeline; put it into a Secret and name that in resources.secrets"
                )
        return variables

    @model_validator(mode="after")
    def _check_across(self) -> Self:
        steps = [name for name, value in self if isinstance(value, StepResources)]
        for name in steps:
            step = self.step(name)
            if step.nodes > 1 and name != "train_grpo":
                raise ValueError(f"{name}.nodes: only train_grpo runs on several nodes; remove it")
            if self.priority_class_of(name) and not self.queue_of(name):
                raise ValueError(
                    f"{name}.priority_class: KFP cannot set a pod's PriorityClass, this one is Kueue's; name a queue "
                    "as well"
                )
        for secret in self.secrets:
            unknown = [name for name in secret.steps if name not in steps]
            if unknown:
                raise ValueError(f"secrets[{secret.name}].steps: {unknown[0]!r} is no step; known: {', '.join(steps)}")
        return self

    def step(self, name: str) -> StepResources:
        """What is asked for one step.

        Args:
            name: the step.
        """
        found: StepResources = getattr(self, name)
        return found

    def pod(self, name: str) -> StepResources:
        """What the step's own pod asks for: of a training on several nodes, that which only starts and follows it.

        Args:
            name: the step.
        """
        wants = self.step(name)
        if wants.nodes == 1:
            return wants
        return wants.model_copy(update={"cpu": "1", "memory": "4Gi", "gpus": 0, "shared_memory": None, "queue": None})

    def queue_of(self, name: str) -> str | None:
        """Kueue LocalQueue of a step."""
        return self.step(name).queue or self.queue

    def priority_class_of(self, name: str) -> str | None:
        """Kueue WorkloadPriorityClass of a step."""
        return self.step(name).priority_class or self.priority_class

    def secrets_of(self, name: str) -> list[SecretConfig]:
        """Secrets a step gets."""
        return [secret for secret in self.secrets if not secret.steps or name in secret.steps]

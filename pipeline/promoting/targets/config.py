"""Where and how a promoted version is served: the file behind `grpo promote --serving FILE`.

Read by commands_serving.py and kept in a promotion's journal. Imports pydantic only; defaults are a server on this
machine.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from components.sections import Section


class KubernetesConfig(Section):
    """A Deployment of vLLM, or a KServe InferenceService."""

    kind: Literal["deployment", "kserve"] = "deployment"
    """`deployment` makes a Deployment and a Service; `kserve` an InferenceService."""

    namespace: Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63)] = "default"
    """Namespace it is served in."""

    context: str | None = None
    """Context of the kubeconfig; null takes the current one, or the pod's own service account inside a cluster."""

    image: Annotated[str, Field(min_length=1)] = "docker.io/vllm/vllm-openai:v0.31.0"
    """Image of vLLM; pin a version or a digest."""

    fetch_image: Annotated[str, Field(min_length=1)] = "registry.example.com/grpo/registry:0.1.0"
    """Image of this pipeline; its init container downloads the weights and compares every byte with the manifest."""

    replicas: Annotated[int, Field(ge=1)] = 1
    """Pods."""

    gpus: Annotated[int, Field(ge=0)] = 1
    """GPUs a pod (nvidia.com/gpu); 0 for vLLM's CPU image."""

    cpu: str = "4"
    """CPU a pod asks for."""

    memory: str = "16Gi"
    """Memory a pod asks for."""

    storage: str = "20Gi"
    """Size limit of the volume the weights are downloaded to."""

    secret: str | None = None
    """Secret with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; null when the service account gives access."""

    service_account: str | None = None
    """Service account of the pods."""

    arguments: list[str] = []
    """Further arguments of vLLM's server."""


class ServingConfig(Section):
    """Where a promoted version is served."""

    target: Literal["local", "kubernetes", "gitops"] = "local"
    """`local`: a server process on this machine; `kubernetes`: applied to a cluster; `gitops`: a manifest in a
    folder."""

    host: str = "127.0.0.1"
    """Address the local server listens on; 0.0.0.0 lets other machines in."""

    port: Annotated[int, Field(ge=1, le=65535)] = 8000
    """Port of the local server."""

    engine: Literal["auto", "vllm", "transformers"] = "auto"
    """Server of the local target: vLLM where it is installed, else `transformers serve`."""

    dtype: Literal["auto", "float32", "bfloat16", "float16"] | None = None
    """Precision; null takes the evaluation's, so that what is served is what was evaluated."""

    ready_timeout_s: Annotated[float, Field(gt=0)] = 900.0
    """Longest wait for the server to be ready."""

    endpoint: str | None = None
    """URL the probe asks (ending before /v1); null takes the local server, or the service's name in the cluster."""

    kubernetes: KubernetesConfig = KubernetesConfig()
    """The cluster's side: for the targets kubernetes and gitops."""

    folder: str | None = None
    """Folder of a git checkout the gitops target writes to."""

    @model_validator(mode="after")
    def _folder_where_needed(self) -> Self:
        if self.target == "gitops" and not self.folder:
            raise ValueError("target gitops needs folder: the folder that the manifest is written to")
        return self

    def in_words(self) -> str:
        """The target in a few words, for plan and log."""
        if self.target == "local":
            return f"local ({self.host}:{self.port})"
        if self.target == "gitops":
            return f"gitops ({self.folder})"
        return f"kubernetes ({self.kubernetes.kind} in namespace {self.kubernetes.namespace})"

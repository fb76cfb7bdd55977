"""The `resources` section: what each step asks of a cluster, and its image. Ignored by the local runner."""

from typing import Annotated

from pydantic import Field

from components.sections import Section


class StepResources(Section):
    """What one step's pod asks for."""

    cpu: Annotated[str, Field(pattern=r"^\d+(\.\d+)?m?$")] = "2"
    """CPU cores (Kubernetes quantity)."""

    memory: Annotated[str, Field(pattern=r"^\d+(\.\d+)?(Ki|Mi|Gi|Ti|K|M|G|T)?$")] = "4Gi"
    """Memory (Kubernetes quantity)."""

    gpus: Annotated[int, Field(ge=0)] = 0
    """GPUs of the pod."""

    gpu_type: str = "nvidia.com/gpu"
    """Resource name of the accelerator."""

    timeout_minutes: Annotated[int, Field(ge=1)] = 720
    """The pod is ended after this long."""

    retries: Annotated[int, Field(ge=0)] = 2
    """How often the platform starts a failed pod again (training goes on from its last checkpoint)."""


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


class ResourcesConfig(Section):
    """Images, and what each step's pod asks for."""

    images: ImagesConfig = ImagesConfig()
    """Container images by step family."""

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

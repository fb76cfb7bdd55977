"""What two trainings must share for the time of one to say something about the other. Light.

A finished training writes it into its adapter's manifest (stages.py); `grpo plan` looks for it.
"""

from components.sections import content_hash
from components.train_grpo.batches import BatchPlan
from components.train_grpo.config import TrainingConfig


def measured_shape(*, parameters: int, training: TrainingConfig, batch: BatchPlan, full: bool) -> str:
    """Hash of what decides how long a step takes, but for the device.

    Args:
        parameters: of the base model.
        training: the section, of the last stage.
        batch: the batch of one step.
        full: whether all weights are trained.

    Returns:
        16 hex digits.
    """
    facts = {
        "parameters": parameters,
        "completions": batch.completions,
        "per_device": batch.per_device,
        "group_size": batch.group_size,
        "processes": batch.processes,
        "completion": int(training.value("max_completion_length")),
        "generation": training.generation,
        "full": full,
    }
    return content_hash(facts)[:16]

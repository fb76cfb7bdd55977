"""The pipeline's parameters: each section of the config as a JSON string. Light: imports no kfp."""

import json

from pipeline.config import RunConfig
from pipeline.rewards_commands import training_sampling


def pipeline_arguments(config: RunConfig, *, model_inputs: str, data_inputs: str) -> dict[str, str]:
    """The pipeline's parameters: each section as a JSON string.

    Args:
        config: the run config.
        model_inputs: fingerprint of a local base model.
        data_inputs: fingerprint of local data files.

    Returns:
        Text by parameter name (KFP would turn whole numbers inside mappings into floats).
    """
    return {
        "run": config.run.to_json(),
        "model": config.model.to_json(),
        "data": config.data.to_json(),
        "contract": config.contract.to_json(),
        "rewards": config.rewards.to_json(),
        "smoke_test": config.smoke_test.to_json(),
        "sampling": training_sampling(config.training).to_json(),
        "training": config.training.to_json(),
        "lora": config.lora.to_json() if config.lora else "null",
        "stages": json.dumps([stage.model_dump(mode="json") for stage in config.stages], sort_keys=True),
        "merge": config.merge.to_json(),
        "evaluation": config.evaluation.to_json(),
        "gates": config.gates.to_json(),
        "registry": config.registry.model_copy(update={"name": config.registered_name}).to_json(),
        "tracking": config.tracking.to_json(),
        "store": config.store.to_json(),
        "config": config.to_json(),
        "model_inputs": model_inputs,
        "data_inputs": data_inputs,
    }

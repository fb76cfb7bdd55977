"""System prompts in MLflow's prompt registry: one entry a model, a new version only for a new text.

Called by register_model. The entry is called `<model>-system-prompt`.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from components.errors import PipelineError

if TYPE_CHECKING:
    from mlflow import MlflowClient


def register_system_prompt(client: "MlflowClient", model: str, text: str, tags: Mapping[str, str]) -> str:
    """Register a model's system prompt, or find that this text is registered.

    Args:
        client: from `components.tracking.runs.connect`.
        model: the registered model's name.
        text: the system prompt.
        tags: of a new version.

    Returns:
        `<name>/<version>`.

    Raises:
        PipelineError: when the registry refuses.
    """
    from mlflow.exceptions import MlflowException

    name = f"{model}-system-prompt"
    try:
        known = client.search_prompt_versions(name) if client.get_prompt(name) is not None else []
        for prompt in known:
            if prompt.template == text:
                return f"{name}/{prompt.version}"
        return f"{name}/{client.register_prompt(name, text, tags=dict(tags)).version}"
    except MlflowException as error:
        raise PipelineError(f"MLflow did not register the prompt {name}: {str(error).splitlines()[0]}") from error

"""`grpo steps` and `grpo step`: what each step takes and hands on, and one step run alone for debugging."""

import importlib
import inspect
import tempfile
from pathlib import Path
from typing import Any

from components.errors import BadInputError
from pipeline.arguments import pipeline_arguments
from pipeline.config import RunConfig
from pipeline.fingerprint import code_fingerprint, files_fingerprint
from pipeline.runners import STEP_ORDER


class _LocalArtifact:
    """Stands in for a KFP output artifact: a path to write to, metrics to print."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.metrics: dict[str, float] = {}

    def log_metric(self, name: str, value: float) -> None:
        """Keep a metric."""
        self.metrics[name] = value


def component_function(name: str) -> Any:
    """The Python function behind a step's component.

    Args:
        name: the step's name.

    Raises:
        BadInputError: when there is no such step.
    """
    if name not in STEP_ORDER:
        raise BadInputError(f"step {name!r} is unknown; `grpo steps` lists them: {', '.join(STEP_ORDER)}")
    module = importlib.import_module(f"components.{name}.component")
    return getattr(module, name).python_func


def describe_steps() -> str:
    """One line a step: its references in, its sections, its first docstring line."""
    lines = []
    sections = set(RunConfig.model_fields)
    for name in STEP_ORDER:
        function = component_function(name)
        parameters = [
            p
            for p in inspect.signature(function).parameters
            if p not in ("code", "inputs", "report", "metrics", "stop_fails")
        ]
        references = [p for p in parameters if not (p in sections or p in ("config", "run")) or _is_reference(name, p)]
        own = [p for p in parameters if p not in references]
        lines.append(f"{name}\n    {inspect.getdoc(function).splitlines()[0]}")  # type: ignore[union-attr]
        lines.append(f"    from earlier steps: {', '.join(references) or '-'}; from the config: {', '.join(own)}")
    return "\n".join(lines)


def run_step(name: str, config: RunConfig, inputs: list[str]) -> dict[str, str]:
    """Run one step in this process.

    Args:
        name: the step's name.
        config: where its sections come from.
        inputs: `name=reference` texts for what earlier steps hand on.

    Returns:
        Its outputs by name.

    Raises:
        BadInputError: when an input is missing or unknown.
    """
    function = component_function(name)
    given = {}
    for text in inputs:
        key, equals, value = text.partition("=")
        if not equals:
            raise BadInputError(f"--input {text!r}: write NAME=REFERENCE")
        given[key] = value
    arguments: dict[str, Any] = {}
    sections = pipeline_arguments(config, model_inputs="", data_inputs="")
    missing = []
    with tempfile.TemporaryDirectory(prefix="grpo-step-") as folder:
        parameters = inspect.signature(function).parameters
        for key in given:
            if key not in parameters:
                raise BadInputError(f"--input {key}: {name} takes no such input; it takes {', '.join(parameters)}")
        for key in parameters:
            if key in given:
                arguments[key] = given[key]
            elif key in ("report", "metrics"):
                arguments[key] = _LocalArtifact(Path(folder) / key)
            elif key == "code":
                arguments[key] = code_fingerprint(name)
            elif key == "inputs":
                section = config.model if name == "import_model" else config.data
                arguments[key] = files_fingerprint(section.local_files())
            elif key in sections and not _is_reference(name, key):
                arguments[key] = sections[key]
            elif parameters[key].default is not inspect.Parameter.empty:
                continue
            else:
                missing.append(key)
        if missing:
            raise BadInputError(
                f"{name} needs {', '.join(missing)}: give each with --input NAME=REFERENCE (an earlier step's output)"
            )
        result = function(**arguments)
        outputs = result._asdict() if hasattr(result, "_asdict") else {"Output": result}
        for value in arguments.values():
            if isinstance(value, _LocalArtifact):
                outputs |= {metric: str(figure) for metric, figure in value.metrics.items()}
    return outputs


def _is_reference(step: str, parameter: str) -> bool:
    """Whether a parameter that shares its name with a section is an earlier step's output."""
    return (step, parameter) in {
        ("evaluate_holdout", "model"),
        ("train_grpo", "smoke_test"),
        ("register_model", "smoke_test"),
    }

"""The run config: one YAML file that says everything about a run, composed from the sections the components own.

`load_config` is the one way in, for the command line, the runners and tests. Relative paths of inputs (data, model,
reward files) are taken against the config file's folder, those of outputs (store, MLflow database) against the folder
the command is run in. Nothing is read from the environment but credentials and endpoints, and those not here.
"""

import difflib
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Self

import yaml
from pydantic import BaseModel, Field, ValidationError, model_validator

from components.contract.config import ContractConfig
from components.errors import BadInputError
from components.evaluate_holdout.config import EvaluationConfig
from components.import_model.config import ModelConfig
from components.judge_candidate.config import GatesConfig
from components.merge_lora.config import MergeConfig
from components.prepare_dataset.config import DataConfig
from components.register_model.config import RegistryConfig
from components.rewards.config import RewardsConfig
from components.sections import Section
from components.smoke_test_rewards.config import SmokeTestConfig
from components.storage.config import StoreConfig
from components.tracking.config import TrackingConfig
from components.train_grpo.config import LoraConfig, StageConfig, TrainingConfig, stage_training
from pipeline.resources import ResourcesConfig


class RunSection(Section):
    """The run itself."""

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9][a-zA-Z0-9._-]*$", max_length=100)] = "grpo"
    """Name of the run in MLflow and on the cluster: letters, digits, dot, dash, underscore."""

    seed: Annotated[int, Field(ge=0, lt=2**31)] = 42
    """Seed of everything random in the run; another seed is a replicate."""

    attempt: Annotated[str, Field(pattern=r"^[A-Za-z0-9-]*$", max_length=40)] = ""
    """A name that sets this training apart from an equal one, so that it starts anew beside it; `grpo run --fresh`
    writes one. Empty goes on with the training that is there."""


class RunConfig(Section):
    """One run of the pipeline."""

    run: RunSection = RunSection()
    """The run itself."""

    model: ModelConfig
    """The base model."""

    data: DataConfig
    """Training, validation and holdout rows."""

    contract: ContractConfig = ContractConfig()
    """What a prompt and a good response look like."""

    rewards: RewardsConfig = RewardsConfig()
    """Reward functions and their weights."""

    smoke_test: SmokeTestConfig = SmokeTestConfig()
    """How the rewards are tested before training."""

    training: TrainingConfig = TrainingConfig()
    """How the policy is trained: any field of TRL's GRPOConfig, and a few of our own."""

    lora: LoraConfig | None = LoraConfig()
    """The adapter; null trains all weights."""

    stages: list[StageConfig] = []
    """Several trainings in a row; empty means one GRPO stage."""

    merge: MergeConfig = MergeConfig()
    """How the adapter is merged into the base model."""

    evaluation: EvaluationConfig = EvaluationConfig()
    """How base and candidate are evaluated on the holdout."""

    gates: GatesConfig = GatesConfig()
    """What a candidate must show to be registered."""

    registry: RegistryConfig = RegistryConfig()
    """Under which name it is registered."""

    tracking: TrackingConfig = TrackingConfig()
    """Where MLflow is."""

    store: StoreConfig = StoreConfig()
    """Where artifacts are kept."""

    resources: ResourcesConfig = ResourcesConfig()
    """Images, and what each step asks of a cluster."""

    @model_validator(mode="after")
    def _check_across(self) -> Self:
        names = [stage.name for stage in self.stages]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"stages: two stages are named {name!r}; give each a name of its own")
        for stage in self.stages:
            stage_training(self.training, stage)
        try:
            self.training.batch_plan()
            for stage in self.stages:
                stage_training(self.training, stage).batch_plan()
        except BadInputError as error:
            raise ValueError(str(error)) from error
        return self

    @property
    def registered_name(self) -> str:
        """Name of the registered model."""
        return self.registry.name or self.run.name


def load_config(path: Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Read, compose and check a run config.

    Args:
        path: the YAML file.
        overrides: `section.key=value` texts, the value in YAML, as `--set` takes them.

    Returns:
        The config, input paths absolute.

    Raises:
        BadInputError: one sentence a fault, with the field, the value and what to write instead.
    """
    values = read_layers(path)
    for override in overrides:
        apply_override(values, override)
    return build_config(values, origin=str(path), folder=path.parent)


def build_config(values: Mapping[str, Any], *, origin: str, folder: Path) -> RunConfig:
    """A config from plain values.

    Args:
        values: nested mapping, as YAML gives it.
        origin: what to call it in messages.
        folder: relative input paths are taken against it.

    Raises:
        BadInputError: when it is not valid.
    """
    try:
        config = RunConfig.model_validate(values)
        folder = folder.absolute()
        return config.model_copy(
            update={
                "model": config.model.with_paths_against(folder),
                "data": config.data.with_paths_against(folder),
                "rewards": config.rewards.resolved(folder),
                "evaluation": config.evaluation.resolved(folder),
                "store": config.store.model_copy(update={"uri": absolute_store(config.store.uri)}),
                "tracking": config.tracking.model_copy(update={"uri": absolute_tracking(config.tracking.uri)}),
            }
        )
    except ValidationError as error:
        raise BadInputError(f"{origin}: " + "\n".join(explain(error, values))) from error


def read_layers(path: Path, seen: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The values of a config file laid over those of the one it extends.

    Args:
        path: the YAML file.
        seen: files that led here, to refuse a circle.

    Raises:
        BadInputError: when a file is missing, is not YAML, or extends itself.
    """
    path = path.absolute()
    if path in seen:
        raise BadInputError(f"{path}: extends itself through {' -> '.join(map(str, seen))}")
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise BadInputError(f"config file {path} does not exist; `grpo init DIR` writes one to start from") from None
    except (IsADirectoryError, PermissionError, UnicodeDecodeError) as error:
        raise BadInputError(f"config file {path} cannot be read: {error}") from None
    try:
        values = yaml.load(text, Loader=_UniqueKeyLoader)  # noqa: S506 (a SafeLoader subclass)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise BadInputError(f"{path}{where}: not valid YAML: {getattr(error, 'problem', error)}") from None
    if values is None:
        values = {}
    if not isinstance(values, dict):
        raise BadInputError(
            f"{path}: a config is a mapping of sections (model:, data:, ...), not {type(values).__name__}"
        )
    parent = values.pop("extends", None)
    if parent is None:
        return values
    if not isinstance(parent, str):
        raise BadInputError(f"{path}: extends names one other config file, not {parent!r}")
    base = read_layers(path.parent / parent, (*seen, path))
    if (path.parent / parent).absolute().parent != path.parent:
        raise BadInputError(
            f"{path}: extends: {parent} lies in another folder, so its relative paths would mean other files; "
            "keep both configs in one folder"
        )
    return overlay(base, values)


def overlay(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Two nested mappings, the second winning key by key.

    Args:
        below: defaults.
        above: what overrides them.
    """
    result = dict(below)
    for key, value in above.items():
        if isinstance(value, Mapping) and isinstance(result.get(key), Mapping):
            result[key] = overlay(result[key], value)
        else:
            result[key] = value
    return result


def apply_override(values: dict[str, Any], override: str) -> None:
    """Put one `section.key=value` into nested values.

    Args:
        values: changed in place.
        override: the text after `--set`.

    Raises:
        BadInputError: when it has another form.
    """
    path, equals, text = override.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys):
        raise BadInputError(f"--set {override!r}: write section.key=value, such as --set training.max_steps=3")
    try:
        value = yaml.safe_load(text) if text.strip() else ""
    except yaml.YAMLError:
        raise BadInputError(f"--set {override!r}: {text!r} is not a YAML value; quote it") from None
    target: Any = values
    for key in keys[:-1]:
        if not isinstance(target.get(key), dict):
            # A shorthand such as `rewards: {correctness: 2.0}` gives way to the mapping the path asks for.
            target[key] = {}
        target = target[key]
    target[keys[-1]] = value


def absolute_store(uri: str) -> str:
    """A store's folder against the folder the command is run in; a URI as it is."""
    return uri if "://" in uri else str(Path(uri).expanduser().absolute())


def absolute_tracking(uri: str) -> str:
    """A SQLite file against the folder the command is run in; a server's address as it is."""
    scheme = "sqlite:///"
    return f"{scheme}{Path(uri.removeprefix(scheme)).absolute()}" if uri.startswith(scheme) else uri


def explain(error: ValidationError, values: Mapping[str, Any]) -> list[str]:
    """One sentence for each fault pydantic found.

    Args:
        error: the validation error.
        values: what was validated, to show the value a person wrote.
    """
    sentences = []
    for fault in error.errors(include_url=False):
        place = ".".join(str(part) for part in fault["loc"] if not _is_branch(part)) or "config"
        kind, message = fault["type"], fault["msg"]
        if kind == "extra_forbidden":
            key = str(fault["loc"][-1])
            known = _known_keys(fault["loc"][:-1])
            near = difflib.get_close_matches(key, known, n=1, cutoff=0.4)
            hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(known)}"
            sentences.append(f"{place}: there is no such key; {hint}")
        elif kind == "missing":
            sentences.append(f"{place}: is missing; add it")
        elif kind == "value_error":
            text = message.removeprefix("Value error, ")
            sentences.append(text if text.startswith((place, *RunConfig.model_fields)) else f"{place}: {text}")
        else:
            shown = "" if isinstance(fault["input"], BaseModel) else f" (found {fault['input']!r})"
            sentences.append(f"{place}: {message[0].lower()}{message[1:]}{shown}")
    return sentences


def _is_branch(part: Any) -> bool:
    """Whether a location part is pydantic's name for a union's branch, which means nothing to a person."""
    return isinstance(part, str) and (part[:1].isupper() or "[" in part or part in ("function-before", "str", "dict"))


def _known_keys(location: tuple[Any, ...]) -> list[str]:
    """The keys a section at a location takes."""
    model: Any = RunConfig
    for part in location:
        if not (isinstance(model, type) and issubclass(model, BaseModel)):
            break
        if part in model.model_fields:
            model = _section_of(model.model_fields[str(part)].annotation)
    if isinstance(model, type) and issubclass(model, BaseModel):
        return sorted(model.model_fields)
    return sorted(RunConfig.model_fields)


def _section_of(annotation: Any) -> Any:
    """The section class inside an annotation such as `Section | None` or `list[Section]`."""
    if isinstance(annotation, type):
        return annotation
    for member in typing.get_args(annotation):
        found = _section_of(member)
        if isinstance(found, type) and issubclass(found, BaseModel):
            return found
    return annotation


class _UniqueKeyLoader(yaml.SafeLoader):
    """YAML that refuses a key written twice (PyYAML keeps the last one silently)."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=deep)
            if key in seen and key != "<<":
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} is written twice", key_node.start_mark
                )
            seen.add(key)
        result: dict[Any, Any] = super().construct_mapping(node, deep=deep)
        return result

"""The `rewards:` section of a run config, and every check on it that needs no model and no heavy import.

Read by `pipeline.config` (as `rewards:`), by `build.py` and by the guard's worker. A reward's name is its key; the
reserved keys are settings. Names, options and the form of `use` are checked here; whether a person's own file can be
imported is found out when the guard starts, since importing runs it.
"""

import difflib
import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import ConfigDict, Field, FiniteFloat, ValidationError, model_validator

import components.rewards.library  # noqa: F401 (fills LIBRARY)
from components.errors import BadInputError
from components.rewards.definition import LIBRARY, Aspect, Definition
from components.sections import Section

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
FILE_USE = re.compile(r"(?P<path>.+\.py):(?P<function>[A-Za-z_]\w*)")
MODULE_USE = re.compile(r"(?P<module>[A-Za-z_]\w*(\.[A-Za-z_]\w*)*):(?P<function>[A-Za-z_]\w*)")

PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    # Three or four rewards, one aspect each. What is right weighs more than all the rest together, so that no wrong
    # answer, however well formed, comes near a right one.
    "maths": {
        "correctness": {"weight": 2.0},
        "strict_format": {"weight": 1.0},
        "incremental_format": {"weight": 0.5},
    },
    "code": {
        "code_execution": {"weight": 2.0},
        "strict_format": {"weight": 1.0},
        "incremental_format": {"weight": 0.5},
    },
    "summarisation": {
        "fuzzy_match": {"weight": 2.0, "options": {"unit": "words"}},
        "strict_format": {"weight": 1.0},
        "length": {"weight": 0.3, "options": {"of": "answer", "minimum": 15, "maximum": 120}},
        "repetition_penalty": {"weight": 0.5},
    },
    "qa": {
        "correctness": {"weight": 2.0},
        "fuzzy_match": {"weight": 0.5},
        "strict_format": {"weight": 1.0},
        "incremental_format": {"weight": 0.5},
    },
}
DEFAULT_PRESET = "maths"
RESERVED = frozenset({"schedule", "adaptive", "total", "reward"})
"""Names that settings to come, or the trainer's own metrics, need."""


def nearest(wrong: str, valid: list[str]) -> str:
    """The end of a refusal: the closest valid name, or all of them."""
    close = difflib.get_close_matches(wrong, valid, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"choose one of: {', '.join(sorted(valid))}"


class StoredCode(Section):
    """Where a person's reward file lies in the artifact store; written when a run is submitted, not by hand."""

    reference: str
    """Artifact that holds the file: `<uri>@sha256:<hex>`."""
    file: str
    """The file's name inside the artifact."""
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """Hash of the file's bytes, checked again before it is loaded."""


class RewardConfig(Section):
    """One reward. A bare number is its weight, a bare string its `use`."""

    use: Annotated[str | None, Field(min_length=1)] = None
    """What computes it: a name of the library, `path/to/file.py:function` or `package.module:function`.
    Default: the library's reward of the same name."""
    weight: FiniteFloat | None = None
    """Factor in the total; negative punishes, 0 measures without counting. Default: the library's; 1 for your own."""
    aspect: Aspect | None = None
    """What it judges (format, value, length, style): the traps the smoke test holds it to. Needed for your own only."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Settings of a library reward, or keyword arguments for your own."""
    columns: dict[str, str] = Field(default_factory=dict)
    """Which dataset column feeds a parameter, where the names differ: `{answer: summary}`."""
    whole_batch: bool = False
    """True when one completion's value depends on the others in the batch (a ranking, a diversity bonus).
    A failure then cannot be pinned on one completion, and the whole batch goes without reward."""
    random: bool = False
    """True when the same completion may score differently each time; the smoke test then asks for no equal scores."""
    stored: StoredCode | None = None
    """Where the file of `use` was stored; set when the run is submitted."""

    @model_validator(mode="before")
    @classmethod
    def _shorthand(cls, value: Any) -> Any:
        if value is None:
            return {}
        if isinstance(value, bool):
            raise ValueError(f"a reward is a weight or a mapping, not {value}: write weight: 0 to measure it only")
        if isinstance(value, int | float):
            return {"weight": value}
        if isinstance(value, str):
            return {"use": value}
        return value

    def source(self, name: str) -> str:
        """What `use` says, or the reward's own name."""
        return self.use or name

    def library(self, name: str) -> Definition | None:
        """The library's definition behind this reward, None for a person's own."""
        return LIBRARY.get(self.source(name))

    def file(self) -> Path | None:
        """The file part of `use`, None when it names no file."""
        match = FILE_USE.fullmatch(self.use or "")
        return Path(match["path"]) if match else None


_PLAIN = RewardConfig()


class GuardConfig(Section):
    """How rewards are run apart from training: limits, and how many failures a run survives."""

    timeout: Annotated[float, Field(gt=0, le=86_400)] = 60.0
    """Seconds all rewards together may take for one batch; then the worker and its children are killed."""
    start_timeout: Annotated[float, Field(gt=0, le=3_600)] = 120.0
    """Seconds the worker may take to start and import the rewards."""
    max_error_rate: Annotated[float, Field(ge=0, le=1)] = 0.01
    """Share of completions a reward may fail on, over the last `error_window`; above it the run stops."""
    error_window: Annotated[int, Field(ge=1)] = 1_000
    """Completions the error rate is measured over."""
    min_completions: Annotated[int, Field(ge=1)] = 200
    """The rate is taken over at least this many completions, so that a start with one unlucky failure goes on:
    with the defaults two failures are borne at first, ten once 1,000 completions were scored."""
    memory_mb: Annotated[int, Field(ge=512)] | None = None
    """Address space of the worker in MiB (Linux); a reward that wants more gets a MemoryError. Default: no limit."""
    gpu: bool = False
    """True lets rewards see the GPUs; by default none is visible, so that no reward takes memory from training."""


def _allow_shorthand(schema: dict[str, Any]) -> None:
    """In the JSON Schema, for editors: a reward is also a weight, a `use`, or nothing."""
    entry = schema["additionalProperties"]
    schema["additionalProperties"] = {"anyOf": [entry, {"type": "number"}, {"type": "string"}, {"type": "null"}]}


class RewardsConfig(Section):
    """The rewards of a run: every key that is no setting names a reward."""

    model_config = ConfigDict(extra="allow", json_schema_extra=_allow_shorthand)
    __pydantic_extra__: dict[str, RewardConfig]

    preset: str | None = None
    """Rewards to start from: maths, code, summarisation, qa, or none. Default: maths when the section lists no reward,
    none when it does (what is listed is what is used). With a preset, listed rewards join it or change its weights."""
    guard: GuardConfig = GuardConfig()
    """Time limit, error rate and memory of the process rewards run in."""

    @model_validator(mode="before")
    @classmethod
    def _names(cls, value: Any) -> Any:
        if isinstance(value, list):
            raise ValueError("rewards is a mapping of names to weights, such as {correctness: 2.0}, not a list")
        if not isinstance(value, Mapping):
            return value
        names = [key for key in value if key not in cls.model_fields]
        for name in names:
            if name in RESERVED:
                raise ValueError(f"rewards.{name}: the name is reserved; call the reward otherwise")
            if not NAME.fullmatch(str(name)):
                raise ValueError(f"reward name {name!r}: use letters, digits and _ (it names a metric and a column)")
        seen: dict[str, str] = {}
        for name in names:
            other = seen.setdefault(str(name).lower(), str(name))
            if other != name:
                raise ValueError(f"rewards {other!r} and {name!r} are two rewards with one name: metrics ignore case")
        return value

    @model_validator(mode="after")
    def _known(self) -> Self:
        if self.preset is not None and self.preset != "none" and self.preset not in PRESETS:
            raise ValueError(f"preset {self.preset!r} is unknown: {nearest(self.preset, [*PRESETS, 'none'])}")
        rewards = self.rewards()
        for name, reward in rewards.items():
            _check_reward(name, reward)
        if not rewards:
            raise ValueError("no reward is named: name one, such as correctness: 2.0, or a preset")
        if all(self.weight(name) == 0 for name in rewards):
            raise ValueError(f"every weight is 0 ({', '.join(rewards)}): nothing would be learned")
        return self

    def rewards(self) -> dict[str, RewardConfig]:
        """The rewards in effect, by name: the preset's, changed and followed by those the section lists."""
        listed: dict[str, RewardConfig] = dict(self.__pydantic_extra__ or {})
        preset = self.preset if self.preset is not None else (DEFAULT_PRESET if not listed else "none")
        result = {name: RewardConfig.model_validate(entry) for name, entry in PRESETS.get(preset, {}).items()}
        for name, reward in listed.items():
            base = result.get(name)
            # Compared with the defaults, not with what was written: a section read back from JSON has every field.
            if base is None or reward.use is not None:
                result[name] = reward
            else:
                said = {field: value for field, value in reward if value != getattr(_PLAIN, field)}
                result[name] = base.model_copy(update=said)
        return result

    def weight(self, name: str) -> float:
        """The weight in effect of the reward `name`."""
        reward = self.rewards()[name]
        if reward.weight is not None:
            return reward.weight
        definition = reward.library(name)
        return definition.weight if definition else 1.0

    def code_files(self) -> dict[str, Path]:
        """Files of a person's own rewards that still have to be stored, by reward name, as written in the config."""
        found = {name: reward.file() for name, reward in self.rewards().items() if reward.stored is None}
        return {name: path for name, path in found.items() if path is not None}

    def resolved(self, folder: Path) -> Self:
        """A copy whose reward files are absolute.

        Args:
            folder: the config file's folder.

        Raises:
            BadInputError: when a file does not exist.
        """
        changes: dict[str, RewardConfig] = {}
        for name, path in self.code_files().items():
            absolute = (folder / path.expanduser()).resolve()
            if not absolute.is_file():
                raise BadInputError(f"rewards.{name}.use: {absolute} does not exist; paths are relative to {folder}")
            function = str(self.rewards()[name].use).rsplit(":", 1)[1]
            changes[name] = self.rewards()[name].model_copy(update={"use": f"{absolute}:{function}"})
        return self.with_rewards(changes)

    def with_rewards(self, changes: Mapping[str, RewardConfig]) -> Self:
        """A copy in which the named rewards are replaced."""
        return self.model_validate(
            {**self.model_dump(), **{name: entry.model_dump() for name, entry in changes.items()}}
        )

    def only(self, names: list[str]) -> Self:
        """A copy that keeps the named rewards and nothing else (debugging one reward at a time).

        Raises:
            BadInputError: when a name is not a reward of this section.
        """
        rewards = self.rewards()
        for name in names:
            if name not in rewards:
                raise BadInputError(f"reward {name!r} is not in this config: {nearest(name, list(rewards))}")
        kept = {name: rewards[name].model_dump() for name in names}
        if all(self.weight(name) == 0 for name in names):
            # A reward that is only measured is tried as if it counted: a section of weights 0 says nothing.
            kept = {name: {**reward, "weight": 1.0} for name, reward in kept.items()}
        return self.model_validate({"preset": "none", "guard": self.guard.model_dump(), **kept})


def file_sha256(path: Path) -> str:
    """Sha256 (hex) of a file's bytes."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _check_reward(name: str, reward: RewardConfig) -> None:
    definition = reward.library(name)
    if definition is None:
        source = reward.source(name)
        if ":" not in source:
            if source.endswith(".py"):
                raise ValueError(f"rewards.{name}.use: {source!r} names a file without a function: {source}:FUNCTION")
            key = "use" if reward.use else "name"
            raise ValueError(f"rewards.{name}: {key} {source!r} is no reward of the library; {_mend(name, source)}")
        if not FILE_USE.fullmatch(source) and not MODULE_USE.fullmatch(source):
            raise ValueError(
                f"rewards.{name}.use: {source!r} is neither path/to/file.py:function nor package.module:function"
            )
        return
    try:
        definition.options.model_validate(reward.options)
    except ValidationError as error:
        first = error.errors()[0]
        option = ".".join(str(part) for part in first["loc"])
        known = list(definition.options.model_fields)
        hint = nearest(option, known) if first["type"] == "extra_forbidden" and known else ""
        if first["type"] == "extra_forbidden" and not known:
            hint = f"{definition.name} has no options"
        place = f"rewards.{name}.options.{option}" if option else f"rewards.{name}.options"
        text = first["msg"].removeprefix("Value error, ")
        raise ValueError(f"{place}: {text}; {hint}" if hint else f"{place}: {text}") from None
    for parameter in reward.columns:
        if parameter not in definition.columns:
            reads = ", ".join(definition.columns) or "none"
            raise ValueError(f"rewards.{name}.columns: {definition.name} reads no {parameter!r} (it reads: {reads})")


def _mend(name: str, source: str) -> str:
    settings = difflib.get_close_matches(name, RewardsConfig.model_fields, n=1, cutoff=0.7)
    if settings:
        return f"did you mean the setting {settings[0]!r}?"
    return f"{nearest(source, list(LIBRARY))} (your own: use: path/to/file.py:function)"

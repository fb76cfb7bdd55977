"""The `training`, `lora` and `stages` sections of a run config.

`training` passes any field of TRL's GRPOConfig through, checked by name and type against the pinned TRL without
importing it. Fields the pipeline sets itself are refused, with where to set them instead; names that TRL no longer has
are refused with what replaced them.
"""

import difflib
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from components.errors import BadInputError
from components.sections import Section
from components.train_grpo.batches import BatchPlan, plan_batches
from components.train_grpo.presets import PRESETS
from components.train_grpo.trl_fields import TrlField, load_fields

RENAMED = {
    "max_prompt_length": "removed from TRL, which truncates nothing: write data.max_prompt_tokens (overlong prompts "
    "are dropped and counted there)",
    "warmup_ratio": "write training.warmup_steps: 0.1 (below 1 it is a share of all steps)",
    "torch_dtype": "write model.dtype",
    "dtype": "write model.dtype",
    "attn_implementation": "write model.attention",
    "eval_batch_size": "write training.per_device_eval_batch_size",
    "evaluation_strategy": "write training.eval_strategy",
    "batch_size": "write training.per_device_train_batch_size (completions) or training.prompts_per_step (prompts)",
    "group_size": "write training.num_generations",
    "max_tokens": "write training.max_completion_length",
    "max_new_tokens": "write training.max_completion_length",
    "no_cuda": "write training.use_cpu",
    "save_safetensors": "nothing to write: weights are always safetensors",
    "group_by_length": "write training.train_sampling_strategy",
    "tokenizer": "nothing to write: the tokenizer comes with model.source",
}
"""Names from older guides and TRL versions that GRPOConfig 1.16 does not have, each with what to write now."""

OWNED = {
    "output_dir": "the pipeline places checkpoints in the store; set store.uri",
    "report_to": "metrics go to MLflow; set tracking.uri, and tracking.also for another tracker",
    "run_name": "write run.name",
    "seed": "write run.seed",
    "data_seed": "write run.seed",
    "use_vllm": "write training.generation: vllm-colocate or vllm-server",
    "vllm_mode": "write training.generation: vllm-colocate or vllm-server",
    "reward_weights": "write rewards.<name>.weight",
    "trust_remote_code": "write model.trust_remote_code",
    "model_init_kwargs": "write model.dtype, model.attention and model.revision",
    "resume_from_checkpoint": "a run resumes from its newest complete checkpoint by itself",
    "remove_unused_columns": "reward columns are always kept",
    "save_strategy": "checkpoints are saved every training.save_steps",
    "save_only_model": "a checkpoint holds all that resuming needs",
    "log_completions": "write training.sample_every",
    "log_completions_hub_repo": "completions go to MLflow",
    "push_to_hub": "models are registered in MLflow and kept in the store",
    "hub_model_id": "models are registered in MLflow and kept in the store",
    "hub_token": "credentials come from the environment only",
    "do_train": "nothing to write: the step trains",
    "do_eval": "write training.validate_every",
    "do_predict": "nothing to write: the holdout is evaluated by its own step",
    "disable_tqdm": "progress is drawn by grpo run",
    "load_best_model_at_end": "write training.keep: best or last",
    "shuffle_dataset": "rows are shuffled by run.seed; write training.curriculum for an order of your own",
}
"""GRPOConfig fields the pipeline sets itself, each with where a person sets it instead."""

ALWAYS_REFUSED = frozenset({"use_vllm", "vllm_mode"})
"""Owned fields that are refused even at their default, because they would contradict `training.generation`."""


class GuardsConfig(Section):
    """When training stops by itself instead of going on paying."""

    constant_groups_steps: Annotated[int, Field(ge=0)] = 25
    """Stop after this many logged steps in a row in which nearly every group had equal rewards; 0 never stops."""

    constant_groups_share: Annotated[float, Field(gt=0, le=1)] = 0.98
    """The share of groups without any spread from which a step counts as constant."""

    reward_drop: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Stop when the smoothed reward falls below its start by this share of the reward's range; 0 never stops."""

    kl_limit: Annotated[float, Field(ge=0)] = 0.5
    """Warn when the KL divergence from the reference model (beta > 0) exceeds this; 0 never warns."""

    clipped_steps: Annotated[int, Field(ge=0)] = 25
    """Stop after this many logged steps in a row in which every completion hit the length limit; 0 never stops."""

    identical_steps: Annotated[int, Field(ge=0)] = 25
    """Stop after this many logged steps in a row in which nearly every group was one completion G times over; 0 never
    stops."""

    identical_share: Annotated[float, Field(gt=0, le=1)] = 0.98
    """The share of groups of identical completions from which a step counts as identical."""

    entropy_steps: Annotated[int, Field(ge=0)] = 25
    """Stop after this many logged steps in a row with an entropy below `entropy_floor`; 0 never stops."""

    entropy_floor: Annotated[float, Field(ge=0)] = 0.002
    """Entropy of the next token, mean over completions, in nats: below it the policy no longer explores."""

    step_time_factor: Annotated[float, Field(ge=0)] = 3.0
    """Warn when steps take this many times as long as at the start; 0 never warns."""


class PolicyConfig(Section):
    """What training reads of the `model` section (which import_model owns); other keys there are not its business."""

    model_config = ConfigDict(extra="ignore", frozen=True, use_attribute_docstrings=True)

    dtype: str = "auto"
    """As model.dtype."""

    attention: str = "auto"
    """As model.attention."""

    backend: str = "transformers"
    """As model.backend."""

    trust_remote_code: bool = False
    """As model.trust_remote_code."""


class WeightSchedule(Section):
    """A reward's weight that moves in a straight line and then stays."""

    start: float
    """Weight at the first step."""

    end: float
    """Weight from the end of the line on."""

    until: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Where the line ends, as a share of the stage's steps."""


class AdaptiveWeights(Section):
    """Weights that follow success: what hardly succeeds weighs more, what always succeeds weighs less.

    A reward's success is the mean of its values, which must lie between 0 and 1 (the library's do). Penalties (negative
    weights) and scheduled rewards stay as they are. The rule is the guide's, clamped: below `low` times `raise_by`,
    above `high` times `lower_by`.
    """

    low: Annotated[float, Field(ge=0, le=1)] = 0.3
    """Success below which the weight is raised."""

    high: Annotated[float, Field(ge=0, le=1)] = 0.8
    """Success above which the weight is lowered."""

    raise_by: Annotated[float, Field(ge=1)] = 1.2
    """Factor for a reward that hardly succeeds."""

    lower_by: Annotated[float, Field(gt=0, le=1)] = 0.9
    """Factor for a reward that nearly always succeeds."""

    least: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Smallest weight, as a share of the configured one."""

    most: Annotated[float, Field(ge=1)] = 2.0
    """Largest weight, as a multiple of the configured one."""

    every: Annotated[int, Field(ge=1)] = 10
    """Optimizer steps between two changes; success is averaged over them."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.low >= self.high:
            raise ValueError(f"adaptive_weights.low {self.low} is not below high {self.high}; write low < high")
        return self


class TrainingConfig(Section):
    """How the policy is trained: the keys below, and any field of TRL's GRPOConfig."""

    model_config = ConfigDict(extra="allow", frozen=True, use_attribute_docstrings=True, validate_default=True)

    preset: Literal["memory-optimised", "high-throughput", "cpu-smoke"] | None = None
    """A set of GRPOConfig values to start from; keys beside it override it."""

    generation: Literal["transformers", "vllm-colocate", "vllm-server"] = "transformers"
    """What generates completions while training. Both vLLM ways need a GPU."""

    prompts_per_step: Annotated[int, Field(ge=1)] | None = None
    """Prompts an optimizer step learns from; accumulation is then computed from it, G and the number of processes."""

    sample_every: Annotated[int, Field(ge=1)] = 50
    """Steps between two tables of sampled completions."""

    validate_every: Annotated[int, Field(ge=0)] = 50
    """Steps between two greedy checks of compliance and accuracy on validation rows; 0 checks at the end only."""

    validation_rows: Annotated[int, Field(ge=0)] = 64
    """Validation rows generated for each of those checks; 0 checks nothing."""

    keep: Literal["best", "last"] = "best"
    """Which step goes on to the merge: the best by accuracy, then compliance, on those validation rows, or the last."""

    patience: Annotated[int, Field(ge=0)] = 0
    """End the training after this many checks in a row without a better one; 0 never ends it early."""

    curriculum: str | None = None
    """A column of numbers kept in the data (`data.columns.keep`), such as difficulty: rows come in its order, small
    first, instead of shuffled; null shuffles."""

    weight_schedule: dict[str, WeightSchedule] = {}
    """Rewards whose weight moves while training, by name; it replaces the weight in `rewards`."""

    adaptive_weights: AdaptiveWeights | None = None
    """Let the weights follow each reward's success; null keeps them."""

    processes: Annotated[int, Field(ge=1)] | None = None
    """Training processes on this machine; null takes one a visible GPU, one on a CPU."""

    threads: Annotated[int, Field(ge=1)] | None = None
    """CPU threads of the training process; null leaves it to PyTorch. One thread is fastest for a tiny model."""

    guards: GuardsConfig = GuardsConfig()
    """When training stops by itself."""

    @model_validator(mode="after")
    def _check_fields(self) -> Self:
        for name, value in (self.__pydantic_extra__ or {}).items():
            check_field(name, value)
        return self

    def trl_values(self) -> dict[str, Any]:
        """The GRPOConfig values asked for: the preset's, overridden by the person's own, numbers as numbers."""
        fields = load_fields()
        own = {name: coerce(fields[name], value) for name, value in (self.__pydantic_extra__ or {}).items()}
        preset = dict(PRESETS[self.preset]) if self.preset else {}
        if self.prompts_per_step is not None and "gradient_accumulation_steps" not in own:
            preset.pop("gradient_accumulation_steps", None)
        return preset | own

    def value(self, name: str) -> Any:
        """One GRPOConfig value as it will be: asked for, or TRL's default."""
        return self.trl_values().get(name, load_fields()[name].default)

    def batch_plan(self, processes: int | None = None) -> BatchPlan:
        """The batch of one optimizer step.

        Args:
            processes: number of training processes (GPUs); None takes `processes` of the section, or one.

        Raises:
            BadInputError: when batch, accumulation and G do not fit together.
        """
        values = self.trl_values()
        group_size = int(self.value("num_generations"))
        return plan_batches(
            group_size=group_size,
            per_device=int(values.get("per_device_train_batch_size", group_size)),
            accumulation=values.get("gradient_accumulation_steps"),
            prompts_per_step=self.prompts_per_step,
            processes=processes or self.processes or 1,
        )

    def selection(self) -> dict[str, Any]:
        """What decides which step of the training goes on: part of what identifies a training."""
        if self.keep == "last" and not self.patience:
            return {}
        return {
            "keep": self.keep,
            "patience": self.patience,
            "every": self.validate_every,
            "rows": self.validation_rows,
        }


class LoraConfig(Section):
    """The adapter. `lora: null` in a config trains all weights instead."""

    r: Annotated[int, Field(ge=1)] = 16
    """Rank of the update."""

    alpha: Annotated[float, Field(gt=0)] = 32
    """Scale of the update: alpha / r (alpha / sqrt(r) with use_rslora)."""

    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.05
    """Dropout on the adapter's input while training."""

    target_modules: list[str] | Literal["all-linear"] = [
        "q_proj",
        "k_proj",
        "v_proj",
        "o_proj",
        "gate_proj",
        "up_proj",
        "down_proj",
    ]
    """Which linear layers get an adapter."""

    use_rslora: bool = False
    """Rank-stabilised scaling (alpha / sqrt(r))."""

    use_dora: bool = False
    """Weight-decomposed adapters (DoRA)."""

    modules_to_save: list[str] | None = None
    """Modules trained whole beside the adapter, such as lm_head."""

    base_bits: Literal[4, 8, 16] = 16
    """Bits of the frozen base weights while training: 4 is QLoRA (NF4), 8 LLM.int8; both need a GPU and bitsandbytes.
    The merge always starts from the 16- or 32-bit base."""


class StageConfig(Section):
    """One of several trainings in a row, each starting from the one before."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$")]
    """Name of the stage in metrics and checkpoints: small letters, digits, dashes."""

    kind: Literal["sft", "grpo"] = "grpo"
    """`sft`: supervised on rows that have a worked answer (a cold start); `grpo`: reinforcement."""

    training: dict[str, Any] = {}
    """Values that override `training` in this stage."""

    rewards: dict[str, float] | None = None
    """Weights by reward name in this stage; a reward not named here has weight 0. Null keeps `rewards` as it is."""

    rows: Annotated[int, Field(ge=1)] | None = None
    """Use only the first rows of the training split in this stage; null uses all."""

    @model_validator(mode="after")
    def _check_training(self) -> Self:
        for name, value in self.training.items():
            if name not in TrainingConfig.model_fields:
                check_field(name, value, where=f"stages[{self.name}].training")
        if "processes" in self.training:
            raise ValueError(
                f"stages[{self.name}].training.processes: all stages run in the same processes; write "
                "training.processes"
            )
        return self


def stage_training(training: TrainingConfig, stage: StageConfig) -> TrainingConfig:
    """`training` with a stage's overrides.

    Args:
        training: the run's section.
        stage: the stage.

    Raises:
        pydantic.ValidationError: when an override is not valid.
    """
    base = training.model_dump(exclude_unset=True)
    return TrainingConfig.model_validate(base | stage.training)


def check_field(name: str, value: Any, where: str = "training") -> None:
    """Refuse a name or value that GRPOConfig would not take, or that the pipeline sets itself.

    Args:
        name: the key a person wrote.
        value: its value.
        where: path of the section, for the message.

    Raises:
        ValueError: with what to write instead (pydantic adds where it stands).
    """
    fields = load_fields()
    if name in RENAMED:
        raise ValueError(f"{where}.{name} is not a field of TRL 1.16: {RENAMED[name]}")
    if name not in fields:
        known = [*fields, *TrainingConfig.model_fields]
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]!r}?" if near else "; see the reference for the fields it takes"
        raise ValueError(f"{where}.{name} is not a field of TRL 1.16's GRPOConfig{hint}")
    if name in OWNED and (name in ALWAYS_REFUSED or value != fields[name].default):
        raise ValueError(f"{where}.{name} is set by the pipeline: {OWNED[name]}")
    coerce(fields[name], value, where)


def coerce(field: TrlField, value: Any, where: str = "training") -> Any:
    """The value in the type GRPOConfig wants (YAML reads `1e-5` as text, JSON numbers may come as floats).

    Args:
        field: the field.
        value: what a person wrote.
        where: path of the section, for the message.

    Raises:
        ValueError: when the value is of another type or not one of the field's choices.
    """
    if value is None:
        if field.nullable:
            return None
        raise ValueError(f"{where}.{field.name} may not be null")
    if "bool" in field.types and isinstance(value, bool):
        return value
    if not isinstance(value, bool):
        if "int" in field.types and isinstance(value, int | float) and float(value).is_integer():
            return int(value)
        if "float" in field.types:
            if isinstance(value, int | float):
                return float(value)
            if isinstance(value, str):
                try:
                    return float(value)
                except ValueError:
                    pass
        if "str" in field.types and isinstance(value, str):
            if field.choices and value not in field.choices:
                near = difflib.get_close_matches(value, field.choices, n=1)
                hint = f"did you mean {near[0]!r}? " if near else ""
                raise ValueError(
                    f"{where}.{field.name}: {value!r} is unknown; {hint}choices: {', '.join(field.choices)}"
                )
            return value
        if "dict" in field.types and isinstance(value, dict):
            return value
        if "list" in field.types and isinstance(value, list):
            return value
    wanted = " or ".join({"dict": "a mapping", "list": "a list", "str": "text"}.get(t, t) for t in field.types)
    raise ValueError(f"{where}.{field.name}: {value!r} is {type(value).__name__}, not {wanted}")


def check_steps(training: TrainingConfig, rows: int, processes: int | None = None) -> int:
    """How many optimizer steps the training makes.

    Args:
        training: the section.
        rows: rows of the training split.
        processes: number of training processes; None takes the section's.

    Returns:
        Optimizer steps, at least 1.

    Raises:
        BadInputError: when no step comes out (TRL would end at once, and well).
    """
    plan = training.batch_plan(processes)
    max_steps = int(training.value("max_steps"))
    per_epoch = rows // plan.prompts
    if per_epoch == 0:
        raise BadInputError(
            f"the training split has {rows} rows, but one step takes {plan.prompts} prompts: no step would be made; "
            "add rows, or lower training.prompts_per_step (or batch size and accumulation)"
        )
    if max_steps > 0:
        return max_steps
    return max(1, int(per_epoch * float(training.value("num_train_epochs"))))

"""The `smoke_test` section of a run config: how hard the rewards are tried before training.

Read by `smoke_test_rewards` (the step) and `grpo rewards test|sample`. Imports pydantic only. It refuses waivers
without a reason: a waived finding is printed with it in every report.
"""

from pydantic import Field

from components.sections import Section


class Waiver(Section):
    """One finding that a person has looked at and accepts."""

    name: str = Field(min_length=1)
    """The finding's name as the report prints it, such as `correctness/thousands_comma`; `*` matches any part of a
    name (`total/*`)."""

    reason: str = Field(min_length=3)
    """Why it is right to train all the same, for whoever reads the report later."""


class SmokeTestConfig(Section):
    """What the rewards are held to before a GPU is paid for."""

    rows: int = Field(default=8, ge=1, le=1000)
    """Training rows that traps are built from. They are chosen to differ in kind: large, negative, decimal answers."""

    prompts: int = Field(default=16, ge=0, le=10_000)
    """Training prompts the base model answers to see whether there is anything to learn from (K). 0 switches this part
    off."""

    group_size: int | None = Field(default=None, ge=2, le=1024)
    """Completions sampled for each of those prompts (G). Unset: the training's own number of generations."""

    max_constant_share: float = Field(default=0.9, gt=0, le=1)
    """The signal test fails when at least this share of the groups has one and the same total reward throughout."""

    redundant_correlation: float = Field(default=0.98, gt=0, le=1)
    """Two rewards that correlate at least this much over the sampled completions are reported as a redundant pair
    (a warning)."""

    dominant_share: float = Field(default=0.9, gt=0, le=1)
    """A reward that makes up at least this share of the variance within groups is reported as dominating (a warning
    when there are others)."""

    seconds_per_completion: float = Field(default=0.25, gt=0, le=600)
    """The longest a reward may take for one completion, averaged over an ordinary batch. A single completion that takes
    longer than the guard's time limit is a failure of its own."""

    waive: list[Waiver] = Field(default_factory=list)
    """Findings accepted by name, each with its reason."""

    seed: int = 0
    """Which rows are drawn, and the sampling of the base model."""


class SamplingConfig(Section):
    """How training samples completions, as the smoke test has to: a run's own `training` values, presets applied."""

    temperature: float = Field(gt=0)
    """As training.temperature."""

    top_p: float = Field(gt=0, le=1)
    """As training.top_p."""

    top_k: int = Field(ge=0)
    """As training.top_k; 0 keeps all tokens."""

    repetition_penalty: float = Field(gt=0)
    """As training.repetition_penalty."""

    max_new_tokens: int = Field(ge=1)
    """As training.max_completion_length."""

    group_size: int = Field(ge=2)
    """As training.num_generations (G)."""

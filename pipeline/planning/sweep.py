"""`grpo sweep`: the points of a grid, each a whole config, and the parameters of the sweep's pipeline.

Called by sweep_commands.py, submission.py and cluster/. Refuses a grid over what is done once for all points (data,
model, contract, evaluation), points that come out equal, and a sweep without validation rows to compare on. Imports no
kfp.
"""

import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from components.errors import BadInputError
from pipeline.arguments import pipeline_arguments
from pipeline.config import RunConfig, load_config

VARIED = ("run", "rewards", "training", "lora", "stages")
"""Sections a point may have of its own."""

MOST_BYTES = 90_000
"""Of all points as one pipeline parameter: a longer one does not fit on a step's command line."""


@dataclass(frozen=True)
class Point:
    """One point of the grid.

    Attributes:
        label: what it varies, such as `training.learning_rate=1e-5`.
        config: the whole config.
    """

    label: str
    config: RunConfig


@dataclass(frozen=True)
class Sweep:
    """A grid, ready to run.

    Attributes:
        base: the config that the points vary.
        points: in the grid's order.
        parallel: points trained at once.
    """

    base: RunConfig
    points: tuple[Point, ...]
    parallel: int

    def with_configs(self, change: Callable[[RunConfig], RunConfig]) -> "Sweep":
        """The same grid with every point's config changed alike.

        Args:
            change: what makes a config of one.
        """
        points = tuple(Point(point.label, change(point.config)) for point in self.points)
        return Sweep(self.base, points, self.parallel)

    def varied(self) -> tuple[str, ...]:
        """The sections that points have of their own, as pipeline parameters: the others are sent once for all."""
        shared = _sections(self.base)
        own = [_sections(point.config) for point in self.points]
        return tuple(name for name in shared if name == "run" or any(point[name] != shared[name] for point in own))


def make_sweep(path: Path, overrides: Sequence[str], grid: Sequence[str], *, parallel: int) -> Sweep:
    """Every combination of a grid's values, each checked as a config of its own.

    Args:
        path: the run config.
        overrides: `section.key=value` texts for all points.
        grid: `section.key=value,value` texts.
        parallel: points trained at once.

    Raises:
        BadInputError: naming what of the grid cannot be.
    """
    if not grid:
        raise BadInputError("--grid is missing: write --grid training.learning_rate=1e-5,5e-6")
    axes = [parse_axis(text) for text in grid]
    named = [name for name, _ in axes]
    for name in named:
        if named.count(name) > 1:
            raise BadInputError(f"--grid {name}: given twice; write all its values in one")
    points: list[Point] = []
    for number, values in enumerate(itertools.product(*(values for _, values in axes)), start=1):
        pairs = list(zip(named, values, strict=True))
        label = " ".join(f"{name}={_shown(value)}" for name, value in pairs)
        changes = [f"{name}={json.dumps(value)}" for name, value in pairs]
        config = load_config(path, [*overrides, *changes])
        run = config.run.model_copy(update={"name": f"{config.run.name[:90]}-{number:02d}"})
        points.append(Point(label, config.model_copy(update={"run": run})))
    for first, second in itertools.combinations(points, 2):
        if _identity(first.config) == _identity(second.config):
            raise BadInputError(f"--grid: {first.label} and {second.label} are the same training; take one out")
    if any(point.config.training.validation_rows == 0 for point in points):
        raise BadInputError(
            "training.validation_rows is 0: a sweep compares its points on validation rows; write 64 or more"
        )
    sweep = Sweep(load_config(path, overrides), tuple(points), parallel)
    if len(json.dumps(points_parameter(sweep))) > MOST_BYTES:
        raise BadInputError(f"--grid: {len(points)} points are too many for one run; split the grid")
    return sweep


def parse_axis(text: str) -> tuple[str, list[Any]]:
    """One `section.key=value,value` of a grid.

    Args:
        text: as given to --grid.

    Raises:
        BadInputError: when it has another form, or names a section that all points share.
    """
    name, equals, listed = text.partition("=")
    if not equals or not listed.strip():
        raise BadInputError(f"--grid {text!r}: write section.key=value,value, such as training.beta=0,0.04")
    try:
        values = yaml.safe_load(f"[{listed}]")
    except yaml.YAMLError:
        raise BadInputError(f"--grid {text!r}: {listed!r} is not a list of YAML values; quote it") from None
    section = name.partition(".")[0]
    if section not in VARIED or (section == "run" and name != "run.seed"):
        raise BadInputError(
            f"--grid {name}: points of a sweep share data, model and evaluation; vary training, lora, rewards, stages "
            "or run.seed, and compare the rest with runs of their own"
        )
    return name, list(values)


def sweep_arguments(sweep: Sweep, *, model_inputs: str, data_inputs: str) -> dict[str, Any]:
    """The sweep pipeline's parameters.

    Args:
        sweep: the grid, reward files stored.
        model_inputs: fingerprint of a local base model.
        data_inputs: fingerprint of local data files.
    """
    shared = pipeline_arguments(sweep.base, model_inputs=model_inputs, data_inputs=data_inputs)
    shared.pop("run")
    return {**shared, "points": points_parameter(sweep)}


def points_parameter(sweep: Sweep) -> list[dict[str, str]]:
    """The points as the pipeline takes them: label and sections of their own, JSON each.

    Args:
        sweep: the grid, reward files stored.
    """
    varied = sweep.varied()
    return [
        {"label": point.label, **{name: _sections(point.config)[name] for name in varied}} for point in sweep.points
    ]


def _sections(config: RunConfig) -> dict[str, str]:
    """The sections a point may have of its own, JSON each."""
    arguments = pipeline_arguments(config, model_inputs="", data_inputs="")
    return {name: arguments[name] for name in (*VARIED, "sampling")}


def _identity(config: RunConfig) -> list[Any]:
    """What makes a point's training what it is: numbers compared as numbers, the run's name left out."""
    training = config.training
    own = {name: getattr(training, name) for name in type(training).model_fields}
    return [config.run.seed, training.trl_values(), own, config.rewards, config.lora, config.stages]


def _shown(value: Any) -> str:
    """A value for a label."""
    return value if isinstance(value, str) else json.dumps(value)

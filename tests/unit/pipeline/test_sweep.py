"""A grid becomes points that are each a checked config, and one pipeline in which only the winner goes on."""

import json
from pathlib import Path

import pytest
import yaml

from components.errors import BadInputError
from pipeline.graph import compile_pipeline
from pipeline.planning.sweep import make_sweep, parse_axis, sweep_arguments
from pipeline.planning.sweep_graph import build_sweep

QUICKSTART = Path(__file__).parents[3] / "configs" / "quickstart.yaml"


def sweep(*grid, overrides=(), parallel=1, path=QUICKSTART):
    return make_sweep(path, overrides, grid, parallel=parallel)


def points(*grid, overrides=()):
    return sweep(*grid, overrides=overrides).points


def test_every_combination_is_a_point():
    made = points("training.learning_rate=1e-3,5e-4", "rewards.strict_format.weight=0.5,1.0,2.0")
    assert len(made) == 6
    assert made[1].label == "training.learning_rate=1e-3 rewards.strict_format.weight=1.0"
    assert made[1].config.training.trl_values()["learning_rate"] == 1e-3
    assert made[1].config.rewards.weight("strict_format") == 1.0
    assert [point.config.run.name for point in made[:2]] == ["quickstart-01", "quickstart-02"]


def test_values_may_be_lists_and_texts():
    assert parse_axis("lora.target_modules=[q_proj, v_proj],all-linear") == (
        "lora.target_modules",
        [["q_proj", "v_proj"], "all-linear"],
    )


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        (("training.learning_rat=1,2",), "did you mean 'learning_rate'"),
        (("training.learning_rate",), "write section.key=value,value"),
        (("data.validation_rows=1,2",), "points of a sweep share data"),
        (("run.name=a,b",), "points of a sweep share data"),
        (("training.beta=0,0.0",), "the same training"),
        (("training.beta=0", "training.beta=1"), "given twice"),
        ((), "--grid is missing"),
    ],
)
def test_what_cannot_be_a_grid_is_refused(grid, message):
    with pytest.raises(BadInputError, match=message):
        points(*grid)


def test_a_sweep_without_validation_rows_is_refused():
    with pytest.raises(BadInputError, match="compares its points on validation rows"):
        points("training.beta=0,0.1", overrides=["training.validation_rows=0"])


def test_sixty_four_points_fit_into_one_run():
    learning_rates = ",".join(f"{number}e-6" for number in range(1, 17))
    made = sweep(f"training.learning_rate={learning_rates}", "lora.r=4,8,16,32")
    assert len(made.points) == 64


def test_too_many_points_for_one_parameter_are_refused():
    with pytest.raises(BadInputError, match="split the grid"):
        points(f"rewards.strict_format.weight={','.join(str(number / 8) for number in range(1, 161))}")


def test_points_carry_only_the_sections_in_which_they_differ():
    made = sweep("training.learning_rate=1e-3,5e-4")
    assert made.varied() == ("run", "training")
    assert all(set(point) == {"label", "run", "training"} for point in arguments(made)["points"])
    assert "rewards" in arguments(made)


def test_a_section_in_which_points_differ_from_the_base_only_is_theirs_too():
    assert "rewards" in sweep("rewards.strict_format.weight=0.25").varied()


def arguments(made):
    return sweep_arguments(made, model_inputs="", data_inputs="")


@pytest.fixture
def compiled(tmp_path):
    def compile_grid(*grid, parallel=3):
        made = sweep(*grid)
        pipeline = build_sweep(made.base.resources, parallel=parallel, varied=made.varied())
        compile_pipeline(pipeline, arguments(made), tmp_path / "sweep.yaml")
        return next(yaml.safe_load_all((tmp_path / "sweep.yaml").read_text()))

    return compile_grid


def dags(spec):
    """Tasks by graph: the sweep's own, the points', the loop's."""
    found = {name: c["dag"]["tasks"] for name, c in spec["components"].items() if "dag" in c}
    loop = next(tasks for name, tasks in found.items() if name.startswith("comp-for-loop"))
    return spec["root"]["dag"]["tasks"], found["comp-train-points"], loop


def test_only_the_winner_is_merged_and_meets_the_holdout(compiled):
    whole, points_graph, loop = dags(compiled("training.learning_rate=1e-3,5e-4"))
    branch = next(task for name, task in points_graph.items() if name.startswith("for-loop"))
    assert branch["iteratorPolicy"]["parallelismLimit"] == 3
    assert set(loop) == {"train-grpo"}
    adapter = whole["merge-lora"]["inputs"]["parameters"]["adapter"]["taskOutputParameter"]
    assert adapter == {"outputParameterKey": "adapter", "producerTask": "train-points"}
    assert "holdout" not in json.dumps([points_graph, loop, whole["train-points"]])


@pytest.mark.parametrize(
    "grid",
    ["rewards.strict_format.weight=0.5,1.0", "rewards.strict_format.weight=0.25", "training.temperature=0.8,1.0"],
)
def test_points_that_differ_in_what_the_smoke_test_sees_are_tested_one_by_one(compiled, grid):
    whole, _, loop = dags(compiled(grid))
    assert "smoke-test-rewards" not in whole
    assert set(loop) == {"smoke-test-rewards", "train-grpo"}


def test_points_that_differ_in_training_alone_share_one_smoke_test(compiled):
    whole, _, loop = dags(compiled("training.learning_rate=1e-3,5e-4"))
    assert "smoke-test-rewards" in whole
    assert set(loop) == {"train-grpo"}

"""`grpo plan`: what a training will cost. Mounted by `pipeline.cli`.

Light at the top; what is heavy is imported in a command.
"""

from pathlib import Path
from typing import Annotated

import typer

ConfigPath = Annotated[Path, typer.Argument(metavar="CONFIG", help="The run config, a YAML file.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help="Override one value, such as training.max_steps=3."),
]


def mount(app: typer.Typer) -> None:
    """Add the command.

    Args:
        app: the `grpo` command.
    """
    app.command()(plan)


def plan(
    config: ConfigPath,
    overrides: Overrides = None,
    gpu: Annotated[
        str | None,
        typer.Option("--gpu", help="A GPU by name (L4, A100-80, ...), its GiB, or cpu; default: what is here."),
    ] = None,
    model_config: Annotated[
        Path | None, typer.Option("--model-config", help="A config.json that says the model's shape.")
    ] = None,
    rows: Annotated[int | None, typer.Option("--rows", min=1, help="Training rows; default: counted.")] = None,
) -> None:
    """Say what a training will cost: steps, tokens, checkpoints, memory, time. Exit code 3 when it does not fit."""
    from components.errors import ExitCode
    from pipeline.config import load_config
    from pipeline.planning.plan import make_plan, plan_lines

    made = make_plan(load_config(config, overrides or []), gpu=gpu, model_config=model_config, rows=rows)
    for line in plan_lines(made):
        typer.echo(line)
    if made.fits is False:
        raise typer.Exit(int(ExitCode.GATE_FAILED))

"""`grpo plan` and `grpo sweep`: what a training will cost, and many trainings in one run. Mounted by `pipeline.cli`.

Light at the top; what is heavy is imported in a command.
"""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

ConfigPath = Annotated[Path, typer.Argument(metavar="CONFIG", help="The run config, a YAML file.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help="Override one value, such as training.max_steps=3."),
]


def mount(app: typer.Typer) -> None:
    """Add the commands.

    Args:
        app: the `grpo` command.
    """
    app.command()(plan)
    app.command(context_settings={"allow_extra_args": True})(sweep)


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


def sweep(
    context: typer.Context,
    config: ConfigPath,
    grid: Annotated[
        list[str] | None,
        typer.Option("--grid", metavar="PATH=VALUE,VALUE ...", help="What the points vary; several may follow."),
    ] = None,
    parallel: Annotated[int, typer.Option("--parallel", min=1, help="Points trained at once.")] = 1,
    overrides: Overrides = None,
    cache: Annotated[bool, typer.Option(help="Reuse steps whose inputs and code have not changed.")] = True,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Write the sweep's pipeline for a cluster to this file; run nothing."),
    ] = None,
    home: Annotated[Path, typer.Option("--home", help="Folder for run folders, caches and scratch space.")] = Path(
        ".grpo"
    ),
) -> None:
    """Train every point of a grid in one run; the best by validation rows is judged on the holdout and registered."""
    from pipeline.config import load_config
    from pipeline.planning.sweep import make_sweep

    made = make_sweep(config, overrides or [], [*(grid or []), *context.args], parallel=parallel)
    base = load_config(config, overrides or [])
    typer.echo(f"{len(made.points)} points: " + "; ".join(point.label for point in made.points))
    if output is not None:
        from pipeline.fingerprint import files_fingerprint
        from pipeline.graph import compile_pipeline
        from pipeline.planning.sweep import own_rewards, sweep_arguments
        from pipeline.planning.sweep_graph import build_sweep

        arguments = sweep_arguments(
            base,
            made.points,
            model_inputs=files_fingerprint(base.model.local_files()),
            data_inputs=files_fingerprint(base.data.local_files()),
        )
        pipeline = build_sweep(base.resources, parallel=parallel, own_rewards=own_rewards(made.points))
        compile_pipeline(pipeline, arguments, output)
        typer.echo(f"wrote {output}")
        return
    from rich.console import Console

    from pipeline.display import SWEEP_STEPS, RunDisplay, print_outcome
    from pipeline.runners import run_local
    from pipeline.submission import check_inputs

    check_inputs(base, home)
    console = Console()
    with RunDisplay(console, SWEEP_STEPS) as display:
        outcome = run_local(base, home=home.absolute(), caching=cache, on_event=display.on_event, sweep=made)
        display.conclude(outcome)
    print_outcome(console, outcome, display.reused(), shlex.join(["grpo", *sys.argv[1:]]))
    raise typer.Exit(int(outcome.exit_code))

"""`grpo sweep`: many trainings in one run, here or compiled for a cluster. Mounted by `pipeline.cli`.

Light at the top; what is heavy is imported in a command.
"""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from pipeline.planning.sweep import Sweep

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
    app.command(context_settings={"allow_extra_args": True})(sweep)


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
    store_endpoint: Annotated[
        str | None,
        typer.Option(
            "--store-endpoint",
            metavar="URL",
            help="With -o: S3 endpoint as this machine reaches it, where pods use another.",
        ),
    ] = None,
    home: Annotated[Path, typer.Option("--home", help="Folder for run folders, caches and scratch space.")] = Path(
        ".grpo"
    ),
) -> None:
    """Train every point of a grid in one run; the best by validation rows is judged on the holdout and registered."""
    from components.errors import BadInputError
    from pipeline.planning.sweep import make_sweep

    if store_endpoint is not None and output is None:
        raise BadInputError("--store-endpoint goes with -o; on this machine store.endpoint_url is used")
    made = make_sweep(config, overrides or [], [*(grid or []), *context.args], parallel=parallel)
    typer.echo(f"{len(made.points)} points: " + "; ".join(point.label for point in made.points))
    if output is not None:
        _compile(made, output, caching=cache, store_endpoint=store_endpoint)
        return
    from rich.console import Console

    from pipeline.display import SWEEP_STEPS, RunDisplay, print_outcome
    from pipeline.runners import run_local
    from pipeline.submission import check_inputs

    check_inputs(made.base, home)
    console = Console()
    with RunDisplay(console, SWEEP_STEPS) as display:
        outcome = run_local(made.base, home=home.absolute(), caching=cache, on_event=display.on_event, sweep=made)
        display.conclude(outcome)
    print_outcome(console, outcome, display.reused(), shlex.join(["grpo", *sys.argv[1:]]))
    raise typer.Exit(int(outcome.exit_code))


def _compile(made: "Sweep", output: Path, *, caching: bool, store_endpoint: str | None) -> None:
    """Write the sweep's pipeline for a cluster."""
    from pipeline.cluster.cluster_config import sweep_for_cluster
    from pipeline.cluster.commands_cluster import check_output, say_what_is_not_in_it
    from pipeline.installed import require_extra

    require_extra("compile", "`grpo sweep -o`")
    check_output(output)
    from pipeline.cluster.cluster_graph import compile_sweep_for_cluster

    ready = sweep_for_cluster(made, store_endpoint=store_endpoint)
    compile_sweep_for_cluster(ready, output, caching=caching)
    typer.echo(f"wrote {output}")
    say_what_is_not_in_it(ready.base)

"""The `grpo` command. Each command is a thin call into a module beside this one, imported when it is called.

Exit codes: 0 passed, 1 error, 2 bad config or input, 3 gate failed, 4 stopped and resumable.
"""

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from components.errors import ExitCode, PipelineError
from pipeline import sweep_commands
from pipeline.cluster import commands_cluster
from pipeline.comparing.commands_compare import mount as mount_compare
from pipeline.planning import commands_plan
from pipeline.promoting import commands_serving
from pipeline.rewards_commands import rewards_app
from pipeline.store_commands import store_app

app = typer.Typer(
    name="grpo",
    help="Fine-tune a language model with GRPO, prove on a holdout that it got better, register and serve it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.add_typer(rewards_app)
mount_compare(app)
commands_serving.mount(app)
commands_cluster.mount(app)
commands_plan.mount(app)
sweep_commands.mount(app)
app.add_typer(store_app)

ConfigPath = Annotated[Path, typer.Argument(metavar="CONFIG", help="The run config, a YAML file.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help="Override one value, such as training.max_steps=3."),
]
Home = Annotated[Path, typer.Option("--home", help="Folder for run folders, caches and scratch space.")]
STATE = Path(".grpo")


@app.command()
def run(
    config: ConfigPath,
    overrides: Overrides = None,
    runner: Annotated[
        str, typer.Option(help="How the steps run here: local (one process a step) or docker (one container a step).")
    ] = "local",
    cache: Annotated[bool, typer.Option(help="Reuse steps whose inputs and code have not changed.")] = True,
    fresh: Annotated[bool, typer.Option("--fresh", help="Train anew, beside an equal training that is there.")] = False,
    home: Home = STATE,
) -> None:
    """Run the whole pipeline: import, prepare, smoke test, train, merge, evaluate, judge, register."""
    from rich.console import Console

    from pipeline.config import load_config
    from pipeline.display import RunDisplay, print_outcome
    from pipeline.docker_runner import check_docker
    from pipeline.installed import require_extra
    from pipeline.runners import run_local
    from pipeline.submission import check_inputs, new_attempt

    if runner not in ("local", "docker"):
        raise typer.BadParameter(f"runner {runner!r} is unknown; write local or docker", param_hint="--runner")
    arguments = sys.argv[1:]
    if fresh:
        attempt = f"run.attempt={new_attempt()}"
        overrides = [*(overrides or []), attempt]
        # The command that goes on with this attempt must name it, not begin another.
        arguments = [part for part in arguments if part != "--fresh"] + ["--set", attempt]
    loaded = load_config(config, overrides or [])
    require_extra("compile" if runner == "docker" else "local", f"`grpo run --runner {runner}`")
    if runner == "docker":
        check_docker(loaded)
    check_inputs(loaded, home)
    console = Console()
    with RunDisplay(console) as display:
        outcome = run_local(
            loaded,
            home=home.absolute(),
            caching=cache,
            on_event=display.on_event,
            runner="docker" if runner == "docker" else "local",
        )
        display.conclude(outcome)
    print_outcome(console, outcome, display.reused(), shlex.join(["grpo", *arguments]))
    raise typer.Exit(int(outcome.exit_code))


@app.command()
def validate(config: ConfigPath, overrides: Overrides = None, home: Home = STATE) -> None:
    """Check a config, the files it names, the store and MLflow; run nothing."""
    from pipeline.config import load_config
    from pipeline.submission import check_inputs

    loaded = load_config(config, overrides or [])
    check_inputs(loaded, home)
    typer.echo(f"{config}: valid")


@app.command()
def steps() -> None:
    """List the pipeline's steps, what each takes and what it hands on."""
    from pipeline.single_step import describe_steps

    typer.echo(describe_steps())


@app.command()
def step(
    name: Annotated[str, typer.Argument(help="The step, as `grpo steps` lists it.")],
    config: Annotated[Path, typer.Option("--config", help="The run config its sections are taken from.")],
    inputs: Annotated[
        list[str] | None,
        typer.Option("--input", metavar="NAME=REFERENCE", help="What an earlier step handed on; repeat for each."),
    ] = None,
    overrides: Overrides = None,
    home: Home = STATE,
) -> None:
    """Run one step alone, in this process, on given inputs."""
    from pipeline.config import load_config
    from pipeline.single_step import run_step

    os.environ.setdefault("GRPO_WORK", str((home / "work").absolute()))
    outputs = run_step(name, load_config(config, overrides or []), inputs or [])
    for key, value in outputs.items():
        typer.echo(f"{key}={value}")


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new or empty folder.")],
) -> None:
    """Write a config, a reward file and a data sample to start from."""
    from pipeline.starter import write_starter

    for path in write_starter(folder):
        typer.echo(f"wrote {path}")
    typer.echo(f"next: grpo rewards test {folder / 'run.yaml'}, then grpo run {folder / 'run.yaml'}")


@app.command()
def schema(
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="File to write; standard output without it.")
    ] = None,
) -> None:
    """Print the JSON Schema of a run config, for editors."""
    from pipeline.reference import schema_text

    text = schema_text()
    if output:
        output.write_text(text, encoding="utf-8")
    else:
        typer.echo(text, nl=False)


def main(arguments: list[str] | None = None) -> Any:
    """Run the command; a fault that is a person's to mend is one sentence and an exit code, never a traceback."""
    try:
        return app(args=arguments, standalone_mode=True)
    except PipelineError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(int(error.exit_code))
    except ModuleNotFoundError as error:
        from pipeline.installed import explain_missing

        sentence = explain_missing(error)
        if sentence is None:
            raise
        typer.echo(f"error: {sentence}", err=True)
        sys.exit(int(ExitCode.BAD_INPUT))
    except KeyboardInterrupt:
        typer.echo("stopped", err=True)
        sys.exit(int(ExitCode.RESUMABLE))


if __name__ == "__main__":
    main()

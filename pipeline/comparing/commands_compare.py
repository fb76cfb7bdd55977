"""`grpo runs`, `grpo show`, `grpo compare`, `grpo reproduce`: what MLflow knows of finished runs.

Mounted by `pipeline.cli`; light at the top, what is heavy is imported in a command. They read; only `reproduce` and
`compare --html` write, each the files it is told to.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from pipeline.comparing.tracked_runs import RunReader, TrackedRunView

Config = Annotated[
    Path | None,
    typer.Option("--config", metavar="CONFIG", help="Run config whose tracking section says where MLflow is."),
]
TrackingUri = Annotated[
    str | None, typer.Option("--tracking-uri", help="Where MLflow is (default: sqlite:///.grpo/mlflow.db).")
]
Experiment = Annotated[str | None, typer.Option("--experiment", help="MLflow experiment (default: grpo).")]
RunName = Annotated[str, typer.Argument(metavar="RUN", help="A run's id, the start of it, or its name (the newest).")]


def mount(app: typer.Typer) -> None:
    """Put the commands into the `grpo` app.

    Args:
        app: the app.
    """
    for name, command in (("runs", runs), ("show", show), ("compare", compare), ("reproduce", reproduce)):
        app.command(name)(command)


def runs(
    config: Config = None,
    tracking_uri: TrackingUri = None,
    experiment: Experiment = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="At most so many, the newest.")] = 20,
) -> None:
    """List the newest runs: id, name, state, verdict, main figures."""
    from pipeline.comparing.compare_display import make_console, print_runs

    reader = _reader(config, tracking_uri, experiment)
    found = reader.newest(limit)
    place = f"experiment {reader.tracking.experiment}, {reader.tracking.uri}"
    if not found:
        typer.echo(f"no runs in {place}; start one with `grpo run`")
        return
    print_runs(make_console(), found, place)


def show(run: RunName, config: Config = None, tracking_uri: TrackingUri = None, experiment: Experiment = None) -> None:
    """Show one run: figures with intervals, gates, how often its holdout was used, cost, versions, files."""
    import json

    from pipeline.comparing.compare_display import make_console, print_run
    from pipeline.comparing.reproduction import holdout_sentence, read_config

    reader = _reader(config, tracking_uri, experiment)
    found = _newest(reader, run)
    text = reader.read_file(found, "verdict.json") if found.verdict else None
    tags = found.tags
    places = {"version": ", ".join(reader.versions(found)) or ("nothing registered" if found.verdict else "")}
    places |= {"weights": tags.get("grpo.merged", ""), "adapter": tags.get("grpo.adapter", "")}
    places |= {"files": found.artifact_uri, "repeat": f"grpo reproduce {found.short}" if found.verdict else ""}
    print_run(
        make_console(),
        found,
        verdict=json.loads(text) if text else None,
        holdout=holdout_sentence(found, read_config(reader, found) if found.holdout else None),
        places={label: place for label, place in places.items() if place},
    )


def compare(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RUN]...", help="Ids, starts of ids or names (all runs of a name); none: the newest."),
    ] = None,
    config: Config = None,
    tracking_uri: TrackingUri = None,
    experiment: Experiment = None,
    html: Annotated[Path | None, typer.Option("--html", help="Write the side-by-side page to this file.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Without names: at most so many, the newest.")] = 10,
) -> None:
    """Compare runs with the first: figures with intervals, differences, verdict, cost, and what differs in configs."""
    from components.errors import BadInputError
    from pipeline.comparing.compare import compare_runs
    from pipeline.comparing.compare_display import make_console, print_comparison

    if html is not None and (html.is_dir() or not html.absolute().parent.is_dir()):
        raise BadInputError(f"--html {html}: write the name of a file in a folder that exists")
    reader = _reader(config, tracking_uri, experiment)
    found = [run for name in names for run in reader.find(name)] if names else reader.newest(limit)[::-1]
    chosen = list({run.run_id: run for run in found}.values())
    if not chosen:
        raise BadInputError(f"experiment {reader.tracking.experiment} has no runs; start one with `grpo run`")
    comparison = compare_runs(reader, chosen)
    print_comparison(make_console(), comparison)
    if html is not None:
        from pipeline.comparing.compare_page import write_page

        write_page(comparison, reader, html)
        typer.echo(f"wrote {html}")


def reproduce(
    run: RunName,
    config: Config = None,
    tracking_uri: TrackingUri = None,
    experiment: Experiment = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="A new or empty folder (default: repeat-<start of the id>).")
    ] = None,
) -> None:
    """Write the config and the commands that repeat a run, and say what cannot be repeated."""
    from pipeline.comparing.compare_display import make_console
    from pipeline.comparing.reproduction import write_reproduction

    reader = _reader(config, tracking_uri, experiment)
    found = _newest(reader, run)
    written = write_reproduction(reader, found, output or Path(f"repeat-{found.short}"))
    console = make_console()
    for path in written.files:
        typer.echo(f"wrote {path}")
    typer.echo("\nto repeat the run:")
    for line in written.commands:
        typer.echo(f"  {line}")
    if not written.limits:
        typer.echo("\nnothing is known that keeps it from coming out the same")
        return
    typer.echo("\nwhat may not come out the same:")
    for sentence in written.limits:
        console.print(f"  - {sentence}", markup=False, soft_wrap=True)


def _reader(config: Path | None, uri: str | None, experiment: str | None) -> "RunReader":
    from pipeline.comparing.tracked_runs import RunReader, tracking_of

    return RunReader(tracking_of(config, [], uri, experiment))


def _newest(reader: "RunReader", name: str) -> "TrackedRunView":
    found, count = reader.find_one(name)
    if count > 1:
        typer.echo(f"the newest of {count} runs named {found.name}: {found.run_id}", err=True)
    return found

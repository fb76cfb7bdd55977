"""`grpo compile`, `grpo submit`, `grpo status`, `grpo logs`: a run on a Kubeflow cluster. Mounted by `pipeline.cli`.

Light at the top; what is heavy is imported in a command. Credentials are taken from files, the environment (KFP_TOKEN,
KFP_COOKIE) or the pod's service account, so that none stands in a process list or a shell's history.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from pipeline.cluster.cluster import Cluster, RunState, StepState
    from pipeline.config import RunConfig

ConfigPath = Annotated[Path, typer.Argument(metavar="CONFIG", help="The run config, a YAML file.")]
RunId = Annotated[str, typer.Argument(metavar="RUN", help="The run's id, or its name (the newest).")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help="Override one value, such as training.max_steps=3."),
]
StoreEndpoint = Annotated[
    str | None,
    typer.Option(
        "--store-endpoint", metavar="URL", help="S3 endpoint as this machine reaches it, where pods use another."
    ),
]
Host = Annotated[
    str | None, typer.Option("--host", metavar="URL", help="URL of the KFP API (or the variable KFP_HOST).")
]
TokenFile = Annotated[
    Path | None, typer.Option("--token-file", metavar="FILE", help="File with a bearer token (or KFP_TOKEN).")
]
CookieFile = Annotated[
    Path | None,
    typer.Option("--cookie-file", metavar="FILE", help="File with a Cookie header's value (or KFP_COOKIE)."),
]
ServiceAccount = Annotated[
    bool, typer.Option("--service-account", help="Inside the cluster: use this pod's projected token.")
]
CaCert = Annotated[
    Path | None, typer.Option("--ca-cert", metavar="FILE", help="CA certificates to check the host with.")
]
Insecure = Annotated[bool, typer.Option("--insecure", help="Do not check the host's TLS certificate.")]
Namespace = Annotated[
    str | None,
    typer.Option("--namespace", "-n", help="Profile's namespace, where KFP has several; without it, kubeflow."),
]
Cache = Annotated[bool, typer.Option(help="Reuse steps whose inputs and code have not changed.")]

SYMBOLS = {"SUCCEEDED": "✓", "SKIPPED": "↺", "FAILED": "✗", "RUNNING": "▶", "CANCELED": "✗"}


def mount(app: typer.Typer) -> None:
    """Put the commands into the `grpo` app.

    Args:
        app: the app.
    """
    for name, command in (("compile", compile_config), ("submit", submit), ("status", status), ("logs", logs)):
        app.command(name)(command)


def compile_config(
    config: ConfigPath,
    output: Annotated[Path, typer.Option("-o", "--output", help="The file to write, .yaml.")],
    overrides: Overrides = None,
    resources: Annotated[
        bool, typer.Option("--resources", help="Write Pipeline and PipelineVersion resources, for GitOps.")
    ] = False,
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", help="Namespace of these resources: where KFP is installed.")
    ] = "kubeflow",
    cache: Cache = True,
    store_endpoint: StoreEndpoint = None,
) -> None:
    """Write the pipeline for a Kubeflow cluster, the config as its parameter; local inputs go into the S3 store."""
    from components.sections import content_hash
    from pipeline.installed import require_extra

    require_extra("compile", "`grpo compile`")
    from pipeline.cluster.cluster_graph import compile_for_cluster, compile_resources

    check_output(output)
    ready = _ready(config, overrides, store_endpoint)
    if resources:
        version = f"grpo-{content_hash(ready.to_json(), cache)[:12]}"
        compile_resources(ready, output, namespace=namespace, version=version, caching=cache)
    else:
        compile_for_cluster(ready, output, caching=cache)
    typer.echo(f"wrote {output}")
    say_what_is_not_in_it(ready)


def submit(
    config: Annotated[
        Path | None, typer.Argument(metavar="CONFIG", help="The run config, a YAML file (not with --cancel).")
    ] = None,
    host: Host = None,
    wait: Annotated[bool, typer.Option("--wait", help="Follow the run, and exit by its outcome.")] = False,
    cancel: Annotated[
        str | None, typer.Option("--cancel", metavar="RUN", help="Stop a run instead of starting one.")
    ] = None,
    experiment: Annotated[
        str | None, typer.Option("--experiment", help="KFP experiment (default: tracking.experiment).")
    ] = None,
    overrides: Overrides = None,
    cache: Cache = True,
    store_endpoint: StoreEndpoint = None,
    token_file: TokenFile = None,
    cookie_file: CookieFile = None,
    service_account: ServiceAccount = False,
    ca_cert: CaCert = None,
    insecure: Insecure = False,
    namespace: Namespace = None,
) -> None:
    """Start a run on a Kubeflow cluster: store local inputs, upload the pipeline, create experiment and run."""
    from components.errors import BadInputError

    if (config is None) == (cancel is None):
        raise BadInputError("give either a CONFIG to start a run, or --cancel RUN to stop one")
    connection = (host, token_file, cookie_file, service_account, ca_cert, insecure, namespace)
    if cancel is not None:
        cluster = _connect(*connection)
        run_id = cluster.find(cancel)
        cluster.cancel(run_id)
        typer.echo(f"stopping {run_id}; submitted again it goes on from its last checkpoint")
        return
    from pipeline.cluster.cluster import refuse_placeholder_images
    from pipeline.config import load_config

    assert config is not None
    refuse_placeholder_images(load_config(config, overrides or []))
    cluster = _connect(*connection)
    ready = _ready(config, overrides, store_endpoint)
    run = cluster.submit(ready, caching=cache, experiment=experiment or ready.tracking.experiment)
    typer.echo(f"run   {run.run_id}")
    typer.echo(f"link  {run.link}")
    if not wait:
        typer.echo(f"next  grpo status {run.run_id} --host {cluster.connection.host}")
        return
    _wait(cluster, run.run_id)


def status(
    run: RunId,
    host: Host = None,
    wait: Annotated[bool, typer.Option("--wait", help="Follow the run, and exit by its outcome.")] = False,
    token_file: TokenFile = None,
    cookie_file: CookieFile = None,
    service_account: ServiceAccount = False,
    ca_cert: CaCert = None,
    insecure: Insecure = False,
    namespace: Namespace = None,
) -> None:
    """Say where a run on a cluster stands, step by step; one that ended gives its exit code."""
    cluster = _connect(host, token_file, cookie_file, service_account, ca_cert, insecure, namespace)
    run_id = cluster.find(run)
    if wait:
        _wait(cluster, run_id)
    state = cluster.state(run_id)
    typer.echo(f"{state.name}  {state.run_id}  {state.state.lower()}")
    for step in state.steps:
        typer.echo(_line(step))
    typer.echo(f"link  {state.link}")
    if state.ended:
        _exit(cluster, state)


def logs(
    run: RunId,
    step: Annotated[str, typer.Argument(metavar="STEP", help="A step's name, as `grpo status` lists it.")],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the step ends.")] = False,
    host: Host = None,
    token_file: TokenFile = None,
    cookie_file: CookieFile = None,
    service_account: ServiceAccount = False,
    ca_cert: CaCert = None,
    insecure: Insecure = False,
    namespace: Namespace = None,
) -> None:
    """Print what a step of a run on a cluster printed."""
    cluster = _connect(host, token_file, cookie_file, service_account, ca_cert, insecure, namespace)
    for line in cluster.logs(cluster.find(run), step, follow=follow):
        typer.echo(line)


def _ready(config: Path, overrides: list[str] | None, store_endpoint: str | None) -> "RunConfig":
    """The config as the cluster gets it."""
    from pipeline.cluster.cluster_config import config_for_cluster
    from pipeline.config import load_config

    return config_for_cluster(load_config(config, overrides or []), store_endpoint=store_endpoint)


def check_output(output: Path) -> None:
    """Refuse a file that KFP does not take, or that cannot be written.

    Args:
        output: as given to --output.

    Raises:
        BadInputError: with what to write instead.
    """
    from components.errors import BadInputError

    if output.suffix not in (".yaml", ".yml"):
        raise BadInputError(f"--output {output}: KFP takes YAML; name a file that ends in .yaml")
    if not output.absolute().parent.is_dir():
        raise BadInputError(f"--output {output}: its folder does not exist; make it first")


def say_what_is_not_in_it(config: "RunConfig") -> None:
    """Tell what a person who starts the compiled pipeline by hand has to know.

    Args:
        config: what was compiled.
    """
    from pipeline.cluster.cluster import moving_images

    if config.resources.service_account:
        typer.echo(
            f"note: KFP keeps the service account with a run, not with a pipeline: choose "
            f"{config.resources.service_account} when you start one (`grpo submit` does)"
        )
    if moving_images(config):
        typer.echo("note: images are named by tags, which may move; name digests (image@sha256:...) to fix them")


def _connect(
    host: str | None,
    token_file: Path | None,
    cookie_file: Path | None,
    service_account: bool,
    ca_cert: Path | None,
    insecure: bool,
    namespace: str | None,
) -> "Cluster":
    from components.errors import BadInputError
    from pipeline.cluster.cluster import Cluster, Connection
    from pipeline.installed import require_extra

    require_extra("compile", "this command")
    host = host or os.environ.get("KFP_HOST")
    if not host:
        raise BadInputError("--host is missing; give the URL of the KFP API, or set KFP_HOST")
    if insecure:
        typer.echo("warning: the host's TLS certificate is not checked", err=True)
    return Cluster(
        Connection(
            host=host,
            token=_secret(token_file, "--token-file", "KFP_TOKEN"),
            cookie=_secret(cookie_file, "--cookie-file", "KFP_COOKIE"),
            service_account=service_account,
            ca_cert=ca_cert,
            verify=not insecure,
            namespace=namespace,
        )
    )


def _secret(file: Path | None, option: str, variable: str) -> str | None:
    """A credential from a file, else from the environment."""
    from components.errors import BadInputError

    if file is None:
        return os.environ.get(variable) or None
    try:
        text = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInputError(f"{option} {file} cannot be read ({error})") from error
    if not text or "\n" in text:
        raise BadInputError(f"{option} {file}: holds no single line; write the bare value into it")
    return text


def _wait(cluster: "Cluster", run_id: str) -> Any:
    """Follow a run, and exit by its outcome. Ctrl-C leaves it running and says how to stop it."""
    try:
        state = cluster.wait(run_id, on_change=lambda step: typer.echo(_line(step)))
    except KeyboardInterrupt:
        typer.echo(f"the run goes on; stop it with: grpo submit --cancel {run_id}", err=True)
        raise
    _exit(cluster, state)


def _exit(cluster: "Cluster", state: "RunState") -> None:
    code, message = cluster.outcome(state)
    if message:
        typer.echo(f"{state.state.lower()}: {message}", err=True)
    raise typer.Exit(int(code))


def _line(step: "StepState") -> str:
    seconds = f"  {step.seconds:.0f} s" if step.seconds is not None else ""
    message = f"  {step.message}" if step.message else ""
    state = step.state.lower() or "waiting"
    return f"{SYMBOLS.get(step.state, '·')} {step.name:<20} {state}{seconds}{message}"

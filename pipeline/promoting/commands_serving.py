"""`grpo promote`, `rollback`, `history`, `serve`, `chat` and `evaluate`. Mounted by `pipeline.cli`.

The top of this module is light; what is heavy is imported in a command.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from components.storage.config import StoreConfig
    from components.tracking.config import TrackingConfig
    from pipeline.promoting.promotion import Plan, Promoted
    from pipeline.promoting.targets.config import ServingConfig

STATE = Path(".grpo")

Model = Annotated[str, typer.Argument(metavar="NAME[/VERSION]", help="A registered model; the newest version alone.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="A registered model.")]
Tracking = Annotated[
    str | None, typer.Option("--tracking-uri", help="MLflow; default: the config's, else sqlite:///.grpo/mlflow.db.")
]
Store = Annotated[str | None, typer.Option("--store", help="Artifact store; default: the one the model was run with.")]
Config = Annotated[Path | None, typer.Option("--config", help="Run config whose tracking and store sections are used.")]
Home = Annotated[Path, typer.Option("--home", help="State folder: local servers, caches.")]
Target = Annotated[
    str | None, typer.Option("--target", help="local, kubernetes or gitops; default: the last one used, else local.")
]
Serving = Annotated[
    Path | None, typer.Option("--serving", metavar="FILE", help="YAML with the serving config, see docs/promote.md.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help="Override a value of it, such as kubernetes.gpus=2."),
]
Port = Annotated[int | None, typer.Option("--port", help="Port of the server on this machine (default 8000).")]
By = Annotated[str | None, typer.Option("--by", help="Who asks; default: the user running this.")]
Reason = Annotated[str, typer.Option("--reason", help="Why; kept in the log.")]
Flips = Annotated[
    float, typer.Option("--max-flips", min=0, max=1, help="Share of the probe's replies that may differ in a verdict.")
]
Wait = Annotated[float, typer.Option("--wait", min=0, help="Seconds to wait for another promotion; 0 refuses at once.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show gates, plan and diff; change nothing.")]


def mount(app: typer.Typer) -> None:
    """Add the commands to the command line.

    Args:
        app: the `grpo` app.
    """
    for command in (promote, rollback, history, serve, chat, evaluate):
        app.command()(command)


def promote(
    model: Model,
    target: Target = None,
    serving: Serving = None,
    overrides: Overrides = None,
    port: Port = None,
    by: By = None,
    reason: Reason = "",
    force: Annotated[
        str, typer.Option("--force", metavar="REASON", help="Promote although a gate failed; the reason is kept.")
    ] = "",
    margin: Annotated[
        float, typer.Option(min=0, max=1, help="How far a share may fall behind the champion's: 0.05 is 5 points.")
    ] = 0.05,
    max_flips: Flips = 0.1,
    dry_run: DryRun = False,
    wait: Wait = 0.0,
    config: Config = None,
    tracking_uri: Tracking = None,
    store: Store = None,
    home: Home = STATE,
) -> None:
    """Make a version the champion: verify, compare with the champion, deploy, probe; put all back on any failure."""
    from pipeline.promoting.promotion import Request, last_target, open_desk
    from pipeline.promoting.promotion import promote as carry_out
    from pipeline.promoting.registered import parse_name, read_version, versions
    from pipeline.tracking import open_tracking

    place = _place(config, tracking_uri, store)
    client = open_tracking(place.tracking)
    name, number = parse_name(model)
    if number is not None and not number.isdigit():
        raise typer.BadParameter(f"{model!r}: write NAME or NAME/VERSION", param_hint="NAME")
    version = read_version(client, name, number or versions(client, name)[-1])
    desk = open_desk(client, name, home=home, on_step=_show_step, store=place.store, wait_s=wait)
    serving_config = _serving(serving, target, port, overrides) or last_target(desk)
    request = Request(
        version, serving_config, _user(by), reason, force.strip(), margin, max_flips, dry_run, action="promoted"
    )
    outcome = carry_out(desk, request, lambda plan: _show_plan(plan, force))
    _show_outcome(outcome, dry_run)


def rollback(
    name: Name,
    target: Target = None,
    serving: Serving = None,
    overrides: Overrides = None,
    port: Port = None,
    by: By = None,
    reason: Reason = "",
    max_flips: Flips = 0.1,
    dry_run: DryRun = False,
    wait: Wait = 0.0,
    config: Config = None,
    tracking_uri: Tracking = None,
    store: Store = None,
    home: Home = STATE,
) -> None:
    """Go back to the champion before: verified, deployed and probed the same way."""
    from pipeline.promoting.promotion import open_desk
    from pipeline.promoting.promotion import rollback as carry_out
    from pipeline.tracking import open_tracking

    place = _place(config, tracking_uri, store)
    desk = open_desk(open_tracking(place.tracking), name, home=home, on_step=_show_step, store=place.store, wait_s=wait)
    outcome = carry_out(
        desk,
        serving=_serving(serving, target, port, overrides),
        by=_user(by),
        reason=reason,
        max_flips=max_flips,
        dry_run=dry_run,
        on_plan=lambda plan: _show_plan(plan, ""),
    )
    _show_outcome(outcome, dry_run)


def history(
    name: Name,
    as_json: Annotated[bool, typer.Option("--json", help="The entries as JSON lines.")] = False,
    config: Config = None,
    tracking_uri: Tracking = None,
    store: Store = None,
    home: Home = STATE,
) -> None:
    """Print the log of promotions; repairs one that was interrupted."""
    import json
    from dataclasses import asdict

    from pipeline.promoting.promotion import open_desk, settle
    from pipeline.promoting.registered import champion
    from pipeline.tracking import open_tracking

    place = _place(config, tracking_uri, store)
    client = open_tracking(place.tracking)
    desk = open_desk(client, name, home=home, on_step=_show_step, store=place.store)
    settle(desk)
    entries = desk.log.entries()
    if as_json:
        for entry in entries:
            typer.echo(json.dumps(asdict(entry)))
        return
    under_way = desk.log.journal()
    if under_way is not None:
        typer.echo(f"under way: {under_way.entry.version} by {under_way.entry.by} on {under_way.host}")
    _print_history(entries, name, champion(client, name))


def serve(
    model: Annotated[str, typer.Argument(metavar="NAME@champion|NAME/VERSION|PATH", help="What to serve.")],
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 lets other machines in.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 8000,
    engine: Annotated[str, typer.Option(help="auto, vllm or transformers.")] = "auto",
    dtype: Annotated[
        str | None, typer.Option(help="auto, float32, bfloat16, float16; default: as it was evaluated.")
    ] = None,
    system_prompt: Annotated[
        bool, typer.Option(help="Whether the contract's system prompt applies when a request brings none.")
    ] = True,
    config: Config = None,
    tracking_uri: Tracking = None,
    store: Store = None,
    home: Home = STATE,
) -> None:
    """Serve a model on this machine as an OpenAI-compatible chat endpoint, in the foreground."""
    from components.errors import BadInputError
    from pipeline.promoting.promotion_log import slug
    from pipeline.promoting.serving import run_server, server_command

    for value, allowed, option in (
        (engine, ("auto", "vllm", "transformers"), "--engine"),
        (dtype or "auto", ("auto", "float32", "bfloat16", "float16"), "--dtype"),
    ):
        if value not in allowed:
            raise BadInputError(f"{option} {value!r}: write one of {', '.join(allowed)}")
    found = _find_model(model, config, tracking_uri, store, home)
    name = slug(found.name)
    command = server_command(
        found.folder,
        home.absolute() / "serve" / f"{name}-{port}",
        model=name,
        host=host,
        port=port,
        engine=engine,
        dtype=dtype or found.dtype,
        system_prompt=system_prompt,
    )
    how = {"vllm": "vLLM", "transformers": "transformers serve (one request after the other)"}[command.engine]
    typer.echo(f"{found.told}, served by {how}")
    typer.echo(f"http://{host}:{port}/v1  model: {name}  (grpo chat --endpoint http://127.0.0.1:{port} {name})")
    run_server(command)


def chat(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The served model.")],
    message: Annotated[str | None, typer.Option("-m", "--message", help="Ask this, print the reply and end.")] = None,
    endpoint: Annotated[
        str | None, typer.Option(help="URL before /v1; default: what the local target serves, else port 8000.")
    ] = None,
    system: Annotated[str | None, typer.Option(help="A system message of your own.")] = None,
    system_prompt: Annotated[bool, typer.Option(help="Whether the contract's system prompt applies.")] = True,
    temperature: Annotated[float | None, typer.Option(min=0, help="0 is greedy; default: the model's own.")] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of a reply.")] = 512,
    home: Home = STATE,
) -> None:
    """Talk to a served model; the conversation goes on until an empty line."""
    from pipeline.promoting.endpoint import stream
    from pipeline.promoting.promotion_log import slug
    from pipeline.promoting.serving import SYSTEM_PROMPT_SWITCH
    from pipeline.promoting.targets.local import read_state

    state = read_state(home.absolute(), name)
    url = endpoint or (str(state["url"]) if state else "http://127.0.0.1:8000")
    extra: dict[str, Any] = {} if system_prompt else {"chat_template_kwargs": {SYSTEM_PROMPT_SWITCH: False}}
    conversation = [{"role": "system", "content": system}] if system else []

    def answer(text: str) -> None:
        conversation.append({"role": "user", "content": text})
        said = ""
        for piece in stream(url, slug(name), conversation, max_tokens=max_tokens, temperature=temperature, extra=extra):
            said += piece
            typer.echo(piece, nl=False)
        typer.echo()
        conversation.append({"role": "assistant", "content": said})

    if message is not None:
        answer(message)
        return
    typer.echo(f"{name} at {url}; an empty line ends")
    while True:
        try:
            text = input("> ").strip()
        except EOFError:
            return
        if not text:
            return
        answer(text)


def evaluate(
    model: Annotated[str, typer.Argument(metavar="NAME@champion|NAME/VERSION|PATH", help="What to evaluate.")],
    like: Annotated[
        str | None, typer.Option("--like", metavar="NAME/VERSION", help="Holdout and settings of this version's run.")
    ] = None,
    holdout: Annotated[
        str | None, typer.Option(help="Reference of a holdout; needs --config for contract and decoding.")
    ] = None,
    config: Config = None,
    tracking_uri: Tracking = None,
    store: Store = None,
    home: Home = STATE,
) -> None:
    """Evaluate one model on one holdout, as a run does; `grpo promote` finds the result."""
    from components.errors import BadInputError
    from components.storage.references import Reference
    from pipeline.config import load_config
    from pipeline.promoting.evaluating import HowEvaluated, as_in_run, evaluate_model
    from pipeline.promoting.registered import resolve
    from pipeline.tracking import open_tracking

    found = _find_model(model, config, tracking_uri, store, home)
    if holdout is not None:
        if config is None or like is not None:
            raise BadInputError("--holdout goes with --config (contract and decoding), and not with --like")
        loaded = load_config(config)
        how = HowEvaluated(loaded.model_dump(mode="json"), Reference.parse(holdout))
        place = loaded.store
    else:
        if like is None and found.path:
            raise BadInputError(f"{model} is a folder: give --like NAME/VERSION, or --config and --holdout")
        client = open_tracking(_place(config, tracking_uri, store).tracking)
        how = as_in_run(client, resolve(client, like or model))
        place = found.store
    work = home.absolute() / "work" / "evaluate"
    work.mkdir(parents=True, exist_ok=True)
    result = evaluate_model(found.folder, found.digest, how, place, work)
    _print_metrics(result.metrics, found.told)
    typer.echo(f"{'found' if result.reused else 'stored'}: {result.reference}")


# ---- what the commands share


class _Place:
    """MLflow and, where a person said so, the store."""

    def __init__(self, tracking: "TrackingConfig", store: "StoreConfig | None") -> None:
        self.tracking = tracking
        self.store = store


class _Found:
    """A model to serve or evaluate: a verified folder."""

    def __init__(
        self, folder: Path, name: str, dtype: str, told: str, digest: str, store: "StoreConfig", *, path: bool
    ) -> None:
        self.folder = folder
        self.name = name
        self.dtype = dtype
        self.told = told
        self.digest = digest
        self.store = store
        self.path = path


def _place(config: Path | None, tracking_uri: str | None, store: str | None) -> _Place:
    from components.storage.config import StoreConfig
    from components.tracking.config import TrackingConfig
    from pipeline.config import absolute_store, absolute_tracking, load_config

    loaded = load_config(config) if config else None
    uri = absolute_tracking(tracking_uri or (loaded.tracking.uri if loaded else TrackingConfig().uri))
    if store is None:
        return _Place(TrackingConfig(uri=uri), loaded.store if loaded else None)
    return _Place(TrackingConfig(uri=uri), StoreConfig(uri=absolute_store(store)))


def _serving(
    file: Path | None, target: str | None, port: int | None, overrides: list[str] | None
) -> "ServingConfig | None":
    """The serving config a person gave; None when they gave nothing."""
    from pydantic import ValidationError

    from components.errors import BadInputError
    from pipeline.config import apply_override, read_layers
    from pipeline.promoting.targets.config import ServingConfig

    if file is None and target is None and port is None and not overrides:
        return None
    values: dict[str, Any] = read_layers(file) if file else {}
    for override in overrides or []:
        apply_override(values, override)
    values |= {key: value for key, value in (("target", target), ("port", port)) if value is not None}
    try:
        return ServingConfig.model_validate(values)
    except ValidationError as error:
        faults = "; ".join(
            f"{'.'.join(map(str, fault['loc'])) or 'serving'}: {fault['msg'].removeprefix('Value error, ')}"
            for fault in error.errors()
        )
        raise BadInputError(f"{file or '--set, --target'}: {faults}") from error


def _find_model(model: str, config: Path | None, tracking_uri: str | None, store: str | None, home: Path) -> _Found:
    """A model by path, reference or registered name; every byte verified where there is a manifest."""
    import hashlib

    from components.storage.config import StoreConfig
    from components.storage.manifest import MANIFEST
    from components.storage.references import Reference
    from components.storage.store import default_cache, fetch
    from pipeline.promoting.promotion import open_desk, settle
    from pipeline.promoting.registered import parse_name, read_stored_evaluation, resolve
    from pipeline.promoting.serving import verify_folder
    from pipeline.tracking import open_tracking

    place = _place(config, tracking_uri, store)
    folder = Path(model).expanduser()
    if folder.is_dir() and ("/" in model or (folder / "config.json").exists()):
        folder = folder.resolve()
        verified = verify_folder(folder)
        content = (folder / MANIFEST).read_bytes() if verified else str(folder).encode()
        told = f"{folder}, " + ("every byte verified" if verified else "no manifest in it: nothing to verify against")
        digest = hashlib.sha256(content).hexdigest()
        return _Found(folder, folder.name, "auto", told, digest, place.store or StoreConfig(), path=True)
    if "@sha256:" in model:
        reference = Reference.parse(model)
        verified_folder = fetch(reference, default_cache(), config=place.store)
        name = reference.uri.rpartition("/")[2]
        told = f"{reference}, every byte verified"
        return _Found(verified_folder, name, "auto", told, reference.digest, place.store or StoreConfig(), path=True)
    client = open_tracking(place.tracking)
    version = resolve(client, model)
    desk = open_desk(client, version.name, home=home, on_step=_show_step, store=place.store)
    if parse_name(model)[1] != version.version and settle(desk):
        version = resolve(client, model)
    weights = fetch(version.weights, default_cache(), config=desk.store)
    dtype = str(read_stored_evaluation(version.evaluation, desk.store).settings["dtype"])
    told = f"{version} ({version.weights.uri}), every byte verified"
    return _Found(weights, version.name, dtype, told, version.weights.digest, desk.store, path=False)


def _user(by: str | None) -> str:
    import getpass

    try:
        return by or getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


def _show_step(name: str, text: str) -> None:
    typer.echo(f"{name:<9} {text}")


def _show_plan(plan: "Plan", force: str) -> None:
    for finding in plan.findings:
        typer.echo(f"{'gate':<9} {finding}")
    before = plan.champion.version if plan.champion else "none"
    if plan.nothing_to_do:
        return
    typer.echo(f"{'plan':<9} champion of {plan.version.name}: {before} -> {plan.version.version}")
    for line in plan.changes.splitlines():
        typer.echo(f"{'':<9} {line}")
    if plan.failed and force:
        typer.echo(f"{'forced':<9} {force}")


def _show_outcome(outcome: "Promoted", dry_run: bool) -> None:
    what, name = outcome.plan.version, outcome.plan.version.name
    if outcome.changed:
        if outcome.evidence and outcome.url:
            typer.echo(f"{'probed':<9} {outcome.evidence[-1]}")
        typer.echo(f"{'done':<9} {what} is champion" + (f" and answers at {outcome.url}/v1" if outcome.url else ""))
        if outcome.url:
            typer.echo(f"next: grpo chat {name}; grpo rollback {name} takes it back; grpo history {name}")
    elif dry_run and not outcome.plan.nothing_to_do:
        typer.echo(f"{'dry run':<9} nothing was changed")
    else:
        typer.echo(f"{'done':<9} {what} is champion and served already; nothing was changed")


def _print_history(entries: list[Any], name: str, champion: str | None) -> None:
    if not entries:
        typer.echo(f"{name} was never promoted")
        return
    typer.echo(f"{name}: champion is {champion or 'none'}")
    for entry in entries:
        when = f"{entry.at[:16].replace('T', ' ')} UTC"
        change = f"{entry.previous or 'none'} -> {entry.version}"
        typer.echo(f"{when}  {entry.action:<11}  {change:<10}  by {entry.by}, {entry.target}")
        for label, text in (("reason", entry.reason), ("forced", entry.forced), ("undone", entry.error)):
            if text:
                typer.echo(f"{'':<22}{label}: {text}")


def _print_metrics(metrics: dict[str, Any], title: str) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for column in ("metric", "value", "95 % interval", "n"):
        table.add_column(column)
    for name, figure in metrics.items():
        if figure["value"] is None:
            continue
        ends = "" if figure["low"] is None else f"{figure['low']:.3f} to {figure['high']:.3f}"
        table.add_row(name, f"{figure['value']:.3f}", ends, str(figure["n"]))
    Console().print(table)

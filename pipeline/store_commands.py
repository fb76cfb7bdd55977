"""`grpo store`: list, copy out, verify and clean up the artifacts of a store. Mounted by `pipeline.cli`.

What `gc` keeps is worked out here: every artifact that a run or a registered version names, and every artifact that
those name in their provenance, however many links away.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from components.storage.config import StoreConfig
    from components.storage.inventory import Artifact

store_app = typer.Typer(name="store", help="List, copy, verify and clean up artifacts.", no_args_is_help=True)

Config = Annotated[Path | None, typer.Option("--config", help="Run config that says where the store and MLflow are.")]
Store = Annotated[str | None, typer.Option("--store", metavar="URI", help="The store: a folder or s3://bucket/prefix.")]
Prefix = Annotated[str, typer.Argument(help="Key, or the start of keys, such as models; all without it.")]

RESULT_OF = "verdict"
"""Provenance field by which a report names what it reports on: a report is kept as long as its verdict."""


@store_app.command("ls")
def list_store(prefix: Prefix = "", config: Config = None, store: Store = None) -> None:
    """List the complete artifacts: start of the digest, size, files, kind, key."""
    from components.storage.inventory import list_artifacts
    from components.storage.store import open_store

    opened = open_store(store_section(config, store))
    artifacts = list_artifacts(opened, prefix)
    for artifact in artifacts:
        kind = str(artifact.provenance.get("kind", artifact.key.split("/")[0]))
        size = "in place" if artifact.location else format_size(artifact.size)
        files = f"{artifact.files} file{'' if artifact.files == 1 else 's'}"
        typer.echo(f"{artifact.reference.digest[:12]}  {size:>10}  {files:>10}  {kind:<12}  {artifact.key}")
    total = sum(artifact.size for artifact in artifacts)
    typer.echo(f"{len(artifacts)} artifacts, {format_size(total)}, in {opened.uri}")


@store_app.command("get")
def get_artifact(
    artifact: Annotated[str, typer.Argument(help="A key as `grpo store ls` shows it, or a reference URI@sha256:HEX.")],
    target: Annotated[Path, typer.Argument(help="Folder to make.")],
    config: Config = None,
    store: Store = None,
) -> None:
    """Copy one artifact, verified, into a new folder."""
    from components.errors import BadInputError
    from components.storage.inventory import copy_out
    from components.storage.store import open_store

    opened = open_store(store_section(config, store))
    uri, _, digest = artifact.partition("@sha256:")
    key = uri.removeprefix(f"{opened.uri}/")
    there = opened.find(key) if digest and "://" not in key else None
    if digest and (there is None or there.digest != digest):
        raise BadInputError(f"{opened.uri} holds no artifact {artifact}; `grpo store ls` lists what it holds")
    typer.echo(f"wrote {copy_out(opened, key, target)}")


@store_app.command("verify")
def verify_store(
    prefix: Prefix = "",
    remove_damaged: Annotated[
        bool, typer.Option("--remove-damaged", help="Remove what is damaged; the step that wrote it writes it anew.")
    ] = False,
    config: Config = None,
    store: Store = None,
) -> None:
    """Read every byte and compare it with the manifests. Exit code 1 when something is damaged."""
    from components.errors import ExitCode
    from components.storage.inventory import list_artifacts, verify_artifacts
    from components.storage.store import open_store

    opened = open_store(store_section(config, store))
    count = len(list_artifacts(opened, prefix))
    damages = verify_artifacts(opened, prefix, remove_damaged=remove_damaged)
    for damage in damages:
        typer.echo(f"{damage.key}: {damage.fault}" + ("; removed" if damage.removed else ""))
    typer.echo(f"{count} artifacts, {len(damages)} damaged, in {opened.uri}")
    if damages:
        raise typer.Exit(int(ExitCode.ERROR))


@store_app.command("gc")
def collect_garbage_command(
    remove: Annotated[bool, typer.Option("--remove", help="Remove; without it, only say what would be.")] = False,
    older_than_hours: Annotated[float, typer.Option(min=0.0, help="Younger artifacts stay.")] = 24.0,
    tracking_uri: Annotated[str | None, typer.Option("--tracking-uri", help="MLflow; else the config's.")] = None,
    config: Config = None,
    store: Store = None,
) -> None:
    """Remove artifacts that no run in MLflow and no registered version needs. A dry run unless --remove is given."""
    from components.storage.inventory import collect_garbage, list_artifacts
    from components.storage.store import open_store
    from components.tracking.config import TrackingConfig
    from components.tracking.references import tracked_references
    from pipeline.config import absolute_tracking, load_config
    from pipeline.tracking import open_tracking

    opened = open_store(store_section(config, store))
    tracking = load_config(config).tracking if config else TrackingConfig()
    tracking = tracking.model_copy(update={"uri": tracking_uri or absolute_tracking(tracking.uri)})
    keep = needed_references(list_artifacts(opened), tracked_references(open_tracking(tracking)))
    garbage = collect_garbage(opened, keep, dry_run=not remove, grace_s=older_than_hours * 3600)
    verb = "removed" if remove else "would remove"
    for artifact in garbage.removed:
        typer.echo(f"{verb} {artifact.key} ({format_size(artifact.size)})")
    for leftover in garbage.leftovers:
        typer.echo(f"{verb} {leftover} (left by an interrupted writer)")
    typer.echo(
        f"{verb} {len(garbage.removed)} artifacts, {format_size(garbage.size)}; {garbage.kept} stay, which "
        f"{tracking.uri} names or which are younger than {older_than_hours:g} hours"
    )
    if garbage.removed and not remove:
        typer.echo("`grpo store gc --remove` removes them")


def needed_references(artifacts: "list[Artifact]", named: set[str]) -> set[str]:
    """What has to stay: what is named, and what that was made from.

    Args:
        artifacts: everything in the store.
        named: references held by runs and registered versions.

    Returns:
        References, those given among them.
    """
    from components.tracking.references import references_in

    made_from = {str(each.reference): references_in(texts_of(each.provenance)) for each in artifacts}
    # The same content at another place counts as the same artifact.
    by_digest = {each.reference.digest: str(each.reference) for each in artifacts}
    needed: set[str] = set()
    waiting = set(named)
    while waiting:
        reference = waiting.pop()
        if reference in needed:
            continue
        needed.add(reference)
        digest = reference.rpartition(":")[2]
        waiting |= made_from.get(reference, made_from.get(by_digest.get(digest, ""), set()))
    reports = {
        str(each.reference)
        for each in artifacts
        if each.provenance.get("kind") == "report" and each.provenance.get(RESULT_OF) in needed
    }
    return needed | reports


def texts_of(value: Any) -> list[str]:
    """Every text within JSON-able data.

    Args:
        value: nested mappings, lists and plain values.
    """
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for each in value.values() for text in texts_of(each)]
    if isinstance(value, list | tuple):
        return [text for each in value for text in texts_of(each)]
    return []


def format_size(size: int) -> str:
    """Bytes in words, such as 3.4 MiB.

    Args:
        size: bytes.
    """
    amount = float(size)
    for unit in ("B", "KiB", "MiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} GiB"


def store_section(config: Path | None, uri: str | None) -> "StoreConfig":
    """The store a person means: the URI given, with the config's endpoint and other options; else the default.

    Args:
        config: a run config.
        uri: a folder or s3://bucket/prefix.

    Raises:
        BadInputError: when the config or the URI is not valid.
    """
    from components.storage.config import StoreConfig
    from components.storage.store import open_store
    from pipeline.config import absolute_store, load_config

    overrides = [f"store.uri={json.dumps(uri)}"] if uri else []
    if config:
        return load_config(config, overrides).store
    section = open_store(uri).config if uri else StoreConfig()
    return section.model_copy(update={"uri": absolute_store(section.uri)})

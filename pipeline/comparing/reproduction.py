"""Writes what repeats a run (config, reward files, commands) and finds what keeps it from coming out the same.

Called by `grpo reproduce`; `grpo show` takes the sentence on the holdout's use from here. It compares with what the run
recorded: the commit of the code, versions, the hash of each data file and of the model's files, revisions on a hub
(which it pins). Limits: it looks at this machine, and equal inputs do not make sums on a GPU bit-equal.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import yaml

from components.errors import BadInputError, PipelineError
from components.register_model.holdout_use import count_holdout_uses
from components.register_model.reproduce import git_commit, reproduce_commands
from components.storage.config import StoreConfig
from components.storage.manifest import Manifest
from components.storage.references import Reference
from components.storage.store import ArtifactStore, fetch, open_store
from pipeline.comparing.tracked_runs import RunReader, TrackedRunView

CONFIG_FILE = "config.yaml"
COMMANDS_FILE = "commands.sh"


@dataclass(frozen=True)
class Reproduction:
    """What was written.

    Attributes:
        files: paths.
        commands: lines for a shell.
        limits: one sentence for each thing that may not come out the same.
    """

    files: tuple[Path, ...]
    commands: tuple[str, ...]
    limits: tuple[str, ...]


def write_reproduction(reader: RunReader, run: TrackedRunView, folder: Path) -> Reproduction:
    """Write config.yaml, commands.sh and a person's reward files into a folder.

    Args:
        reader: reads the run's files.
        run: the run.
        folder: new or empty.

    Raises:
        BadInputError: the folder is not empty, or the run left no config.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadInputError(f"{folder} is not an empty folder; name another one with -o")
    config = read_config(reader, run)
    if config is None:
        raise BadInputError(
            f"run {run.name} ({run.short}) left no {CONFIG_FILE}: a run writes it at its end, and this one is "
            f"{run.status.lower()}; repeat it from the file it was started with"
        )
    made_with = {
        tag.removeprefix("version."): text for tag, text in run.tags.items() if tag.startswith("version.") and text
    }
    commit = run.tags.get("grpo.git_commit", "")
    limits = [*_code_limits(commit), *_version_limits(made_with)]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        files, reward_limits = _write_rewards(config, folder)
        limits += [*reward_limits, *_input_limits(config, run), *_machine_limits(config, run)]
        path = folder / CONFIG_FILE
        path.write_text(
            _comment(f"The config of run {run.name} ({run.run_id}).")
            + "\n"
            + yaml.safe_dump(config, sort_keys=False, allow_unicode=True, width=100),
            encoding="utf-8",
        )
        limits += _config_limits(path)
        commands = reproduce_commands(config, folder=str(folder), run_id=run.run_id, commit=commit, versions=made_with)
        script = folder / COMMANDS_FILE
        lines = [_comment(f"Repeats run {run.name} ({run.run_id})."), *(_comment(f"Not the same: {x}") for x in limits)]
        script.write_text("\n".join(["#!/bin/sh", *lines, "set -e", *commands]) + "\n", encoding="utf-8")
        script.chmod(0o755)
    except OSError as error:
        raise BadInputError(f"{folder} cannot be written ({error.strerror}); name another folder with -o") from error
    return Reproduction((path, script, *files), tuple(commands), tuple(limits))


def read_config(reader: RunReader, run: TrackedRunView) -> dict[str, Any] | None:
    """The whole config a run left in MLflow, None where it left none.

    Args:
        reader: reads the run's files.
        run: the run.
    """
    text = reader.read_file(run, CONFIG_FILE)
    try:
        loaded = yaml.safe_load(text) if text else None
    except yaml.YAMLError as error:
        raise PipelineError(f"{CONFIG_FILE} of run {run.name} ({run.short}) is not YAML: {error}") from error
    return loaded if isinstance(loaded, dict) else None


def holdout_sentence(run: TrackedRunView, config: Mapping[str, Any] | None) -> str:
    """How often the run's holdout was used when the run was judged, and by now.

    Args:
        run: the run.
        config: its config, whose store is asked; None asks none.
    """
    if not run.holdout:
        return ""
    text = f"fingerprint {run.holdout}…"
    if "grpo.holdout_uses" in run.tags:
        text += f", evaluated {run.tags['grpo.holdout_uses']} times when this run was judged"
    try:
        uses = count_holdout_uses(_store(config), run.holdout) if config else 0
    except PipelineError:
        uses = 0  # a store that does not answer now: what was recorded then stands
    return f"{text}, {uses} times by now (the more, the less a new result on it means)" if uses else text


def _store(config: Mapping[str, Any]) -> ArtifactStore:
    return open_store(StoreConfig.model_validate(dict(config.get("store", {}))))


def _code_limits(commit: str) -> list[str]:
    here = git_commit()
    if not commit:
        return ["The commit of the code was not recorded."]
    limits = []
    if commit.endswith("-changed"):
        limits.append(f"The code was edited beyond commit {commit.removesuffix('-changed')[:12]}; the edits are lost.")
    if here and here != commit and not commit.endswith("-changed"):
        limits.append(f"The code here is at {_commit_text(here)}, the run's was at {_commit_text(commit)}.")
    return limits


def _commit_text(commit: str) -> str:
    return f"commit {commit[:12]}" + (" with edits" if commit.endswith("-changed") else "")


def _version_limits(made_with: Mapping[str, str]) -> list[str]:
    differing = []
    for package, then in sorted(made_with.items()):
        try:
            now = version(package)
        except PackageNotFoundError:
            now = "not installed"
        if now != then:
            differing.append(f"{package} {then} (here {now})")
    return [f"Made with other versions: {', '.join(differing)}."] if differing else []


def _write_rewards(config: dict[str, Any], folder: Path) -> tuple[list[Path], list[str]]:
    """Put a person's reward files beside the config, as they were when the run was submitted; changes the config."""
    written, limits = [], []
    store = StoreConfig.model_validate(dict(config.get("store", {})))
    for name, reward in config.get("rewards", {}).items():
        if not isinstance(reward, dict):
            continue
        stored, use = reward.get("stored"), str(reward.get("use") or "")
        if stored:
            function = use.rpartition(":")[2]
            target = folder / "rewards" / Path(stored["file"]).name
            try:
                source = fetch(stored["reference"], config=store) / stored["file"]
                target.parent.mkdir(exist_ok=True)
                content = source.read_bytes()
            except PipelineError as error:
                limits.append(f"rewards.{name}: its file is no longer in the store ({error}).")
                continue
            if target.exists() and target.read_bytes() != content:
                target = target.with_stem(f"{target.stem}_{name}")
            target.write_bytes(content)
            reward["use"], reward["stored"] = f"rewards/{target.name}:{function}", None
            if target not in written:
                written.append(target)
        elif ":" in use:
            limits.append(f"rewards.{name}: {use} comes from an installed package, whose version was not recorded.")
        if reward.get("random"):
            limits.append(f"rewards.{name} is random by its own account.")
    return written, limits


def _input_limits(config: dict[str, Any], run: TrackedRunView) -> list[str]:
    """Compare data and model with what the run read; pins what was resolved then (changes the config)."""
    limits: list[str] = []
    try:
        store = _store(config)
        holdout = store.read_manifest(Reference.parse(run.tags.get("grpo.holdout", "")))
        base = store.read_manifest(Reference.parse(run.tags.get("grpo.base", "")))
    except PipelineError as error:
        return [f"Data and model were not compared with the run's, the store does not give what it read: {error}."]
    for name in ("train", "validation", "holdout"):
        source, recorded = config.get("data", {}).get(name), holdout.provenance.get("sources", {}).get(name)
        if isinstance(source, dict) and isinstance(recorded, dict):
            limits += _data_limits(name, source, recorded)
    limits += _model_limits(config.get("model", {}), base, run.tags.get("grpo.base", ""))
    return limits


def _data_limits(name: str, source: dict[str, Any], recorded: Mapping[str, Any]) -> list[str]:
    if "hub" in source:
        source["revision"] = recorded.get("revision") or source.get("revision")
        return [] if source["revision"] else [f"data.{name}: the commit of {source['hub']} was not recorded."]
    path = str(source.get("path", ""))
    if not path or "@sha256:" in path:
        return []
    if "://" in path and not path.startswith("file://"):
        return [f"data.{name}: {path} was not compared with what the run read."]
    place = Path(path)
    if not place.exists():
        return [f"data.{name}: {path} is not on this machine."]
    wrong = []
    for entry in recorded.get("files", []):
        file = place / entry["name"] if place.is_dir() else place
        if not file.exists():
            wrong.append(f"{entry['name']} is gone")
        elif _sha256(file) != entry["sha256"]:
            wrong.append(f"{entry['name']} has changed (sha256 was {entry['sha256'][:12]}…)")
    return [f"data.{name}: {path}: {', '.join(wrong[:3])}{', ...' if len(wrong) > 3 else ''}."] if wrong else []


def _model_limits(model: dict[str, Any], base: Manifest, reference: str) -> list[str]:
    source, kept = str(model.get("source", "")), f"the store still has it: model.source: {reference}"
    if base.provenance.get("revision") and not model.get("revision") and not Path(source).exists():
        model["revision"] = base.provenance["revision"]
        return []
    if "://" in source or not source.startswith("/"):
        return []
    place = Path(source)
    if not place.exists():
        return [f"model.source: {source} is not on this machine; {kept}."]
    if not place.is_dir() or base.provenance.get("converted_from"):
        return [f"model.source: {source} was converted when it was imported, and was not compared; {kept}."]
    wrong = [
        entry.path
        for entry in base.files
        if entry.path.endswith((".safetensors", ".json"))
        and (place / entry.path).is_file()
        and ((place / entry.path).stat().st_size != entry.size or _sha256(place / entry.path) != entry.sha256)
    ]
    return [f"model.source: {source} has changed ({', '.join(wrong[:3])}); {kept}."] if wrong else []


def _machine_limits(config: Mapping[str, Any], run: TrackedRunView) -> list[str]:
    limits = []
    device = run.tags.get("grpo.device", "")
    if device and device != "CPU":
        limits.append(f"Trained on {device}: sums on a GPU are not bit-equal from run to run.")
    if str(config.get("training", {}).get("generation", "")) == "vllm":
        limits.append("Completions came from vLLM, whose samples depend on how requests were batched.")
    return limits


def _config_limits(path: Path) -> list[str]:
    """Whether this version still takes the config."""
    from pipeline.config import load_config

    try:
        load_config(path)
    except BadInputError as error:
        return [f"This version of the pipeline does not take the config: {'; '.join(str(error).splitlines())}."]
    return []


def _comment(text: str) -> str:
    """A comment of one line: a name or a message must not become a command."""
    return "# " + " ".join(text.split())


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

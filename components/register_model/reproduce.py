"""What repeats a run: its commands, and the version of the code it ran with.

Called by register_model for the report and by `grpo reproduce`, so that both say the same. Limits: the commands repeat
the run on a machine like the first; what cannot be repeated there `grpo reproduce` says.
"""

import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

COMMIT_VARIABLE = "GRPO_GIT_COMMIT"
"""Environment variable with the commit of the code, for images that hold no checkout."""

DECIDING_PACKAGES = ("torch", "transformers", "trl", "peft", "datasets", "accelerate", "vllm")
"""Packages whose version decides what is learned and generated."""

_GIT_SECONDS = 10


def git_commit() -> str:
    """Commit of the code that runs, `-changed` behind it when files of it were edited; empty when it is not known."""
    named = os.environ.get(COMMIT_VARIABLE)
    if named:
        return named
    git = shutil.which("git")
    root = Path(__file__).resolve().parents[2]
    if git is None or not (root / ".git").exists():
        return ""

    def ask(*arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(  # noqa: S603 (git, fixed arguments)
            [git, "-C", str(root), *arguments], capture_output=True, text=True, timeout=_GIT_SECONDS, check=False
        )

    try:
        head = ask("rev-parse", "HEAD")
        if head.returncode:
            return ""
        changed = ask("diff", "--quiet", "HEAD", "--", "components", "pipeline").returncode != 0
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return head.stdout.strip() + ("-changed" if changed else "")


def reproduce_commands(
    config: Mapping[str, object],
    *,
    folder: str,
    run_id: str,
    commit: str = "",
    versions: Mapping[str, str] | None = None,
) -> list[str]:
    """The commands that repeat a run whose config lies in a folder.

    The repeat gets a store and an experiment of its own: in the first ones the finished training would be found again
    and not repeated.

    Args:
        config: the run's config as plain data.
        folder: where `grpo reproduce` wrote config.yaml.
        run_id: the run's id in MLflow.
        commit: of the code; empty when it is not known.
        versions: package -> version the run was made with.

    Returns:
        Lines for a shell.
    """
    lines = []
    if commit:
        lines.append(f"git checkout {commit.removesuffix('-changed')}")
    pinned = [
        # A local part such as +cpu names a build, which an index may not have.
        f"{package}=={(versions or {})[package].partition('+')[0]}"
        for package in DECIDING_PACKAGES
        if package in (versions or {})
    ]
    if pinned:
        lines.append(f"pip install {' '.join(pinned)}")
    store, tracking = config.get("store"), config.get("tracking")
    uri = str(store.get("uri", "")) if isinstance(store, Mapping) else ""
    experiment = str(tracking.get("experiment", "grpo")) if isinstance(tracking, Mapping) else "grpo"
    fresh = f"{uri.rstrip('/')}/repeat-{run_id[:8]}" if uri.startswith("s3://") else f"{folder}/store"
    words = ["grpo", "run", f"{folder}/config.yaml", "--set", f"store.uri={fresh}"]
    words += ["--set", f"tracking.experiment={experiment}-repeat"]
    lines.append(shlex.join(words))
    return lines


def fetch_command(run_id: str, tracking_uri: str, experiment: str, folder: str) -> str:
    """The `grpo reproduce` command that writes a run's config into a folder.

    Args:
        run_id: the run's id in MLflow.
        tracking_uri: where MLflow is.
        experiment: the run's experiment.
        folder: the folder to write.
    """
    words = ["grpo", "reproduce", run_id, "--tracking-uri", tracking_uri, "--experiment", experiment, "-o", folder]
    return shlex.join(words)

"""A fingerprint of the code a step runs, so that a cache hit means "same inputs, same code".

KFP's cache keys (locally and on a cluster) hold a step's parameters and not the package its body imports; graph.py
passes this hash as the parameter `code`. It covers the step's own folder, the shared rooms it uses, and the versions
of the libraries whose behaviour shows in its result.
"""

import hashlib
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from components.sections import content_hash

COMPONENTS = Path(__file__).parent.parent / "components"

ROOMS: dict[str, tuple[str, ...]] = {
    "import_model": ("storage",),
    "prepare_dataset": ("storage", "contract"),
    "smoke_test_rewards": ("storage", "contract", "rewards", "generation"),
    "train_grpo": ("storage", "contract", "rewards"),
    "merge_lora": ("storage", "contract"),
    "evaluate_holdout": ("storage", "contract", "rewards", "generation"),
    "judge_candidate": ("storage", "contract"),
    "register_model": ("storage", "contract", "tracking"),
    "choose_winner": ("storage", "tracking"),
}
"""The shared rooms each step uses. train_grpo generates and logs through generation and tracking too, but neither
changes what is learned: a new column in MLflow must not cost a training."""

LIBRARIES: dict[str, tuple[str, ...]] = {
    "import_model": ("transformers", "torch", "gguf"),
    "prepare_dataset": ("transformers", "datasets"),
    "smoke_test_rewards": ("transformers", "torch", "vllm"),
    "train_grpo": ("torch", "transformers", "trl", "peft", "vllm"),
    "merge_lora": ("torch", "peft", "transformers"),
    "evaluate_holdout": ("torch", "transformers", "vllm"),
    "judge_candidate": ("scipy",),
    "register_model": ("mlflow",),
    "choose_winner": ("mlflow",),
}
"""Libraries whose version shows in a step's result."""


@cache
def code_fingerprint(step: str) -> str:
    """Hash of what a step runs.

    Args:
        step: the step's folder name.

    Returns:
        32 hex digits.
    """
    files = [COMPONENTS / "errors.py", COMPONENTS / "sections.py"]
    for room in (step, *ROOMS[step]):
        files += sorted(path for path in (COMPONENTS / room).rglob("*") if _is_code(path))
    hashes = {str(path.relative_to(COMPONENTS)): file_hash(path) for path in files}
    return content_hash(hashes, {name: _version(name) for name in LIBRARIES[step]})[:32]


def files_fingerprint(paths: list[Path]) -> str:
    """Hash of the content of files and folders a config names.

    Args:
        paths: files or folders.

    Returns:
        32 hex digits; the same content elsewhere has the same hash.
    """
    hashes = []
    for path in paths:
        files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
        hashes.append(
            [[str(file.relative_to(path)) if path.is_dir() else file.name, file_hash(file)] for file in files]
        )
    return content_hash(hashes)[:32]


def file_hash(path: Path) -> str:
    """Sha256 of a file, 64 hex digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _is_code(path: Path) -> bool:
    """Whether a file takes part in running a step."""
    return path.is_file() and path.suffix in (".py", ".json", ".j2", ".html") and "__pycache__" not in path.parts


def _version(package: str) -> str:
    """Installed version, or a dash."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "-"

"""Which server serves a model directory on this machine, and with which command.

Called by `grpo serve` and by the local target. vLLM where it is installed (on a GPU, or its CPU build), else
`transformers serve`. Both apply the model's own chat template, which inserts the contract's system prompt when a
request brings none, and decode by the model's generation_config.json, as the evaluation did. Refuses weights that are
not what their manifest says. Limits: `transformers serve` answers one request after the other, and only to the model
name it was started with.
"""

import json
import os
import shutil
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from components.errors import BadInputError
from components.storage.manifest import MANIFEST, DamagedArtifactError, Manifest, find_fault

SYSTEM_PROMPT_SWITCH = "default_system"
"""Argument of the merged model's chat template; false leaves the contract's system prompt out."""


@dataclass(frozen=True)
class ServerCommand:
    """How to start a server.

    Attributes:
        engine: vllm or transformers.
        arguments: the command line.
        folder: working directory; it holds a link to the weights, called as the model is.
        environment: further environment variables.
    """

    engine: str
    arguments: list[str]
    folder: Path
    environment: dict[str, str]


def choose_server(engine: str = "auto") -> str:
    """The server that is installed here: vllm, else transformers.

    Args:
        engine: `auto`, `vllm` or `transformers`.

    Raises:
        BadInputError: the one asked for, or any, is not installed.
    """
    has_vllm = find_spec("vllm") is not None
    has_transformers = all(find_spec(name) is not None for name in ("transformers", "fastapi", "uvicorn", "openai"))
    if engine == "vllm" or (engine == "auto" and has_vllm):
        if not has_vllm:
            raise BadInputError("engine vllm: vLLM is not installed here; pip install 'grpo-pipeline[vllm]'")
        return "vllm"
    if not has_transformers:
        raise BadInputError("nothing to serve with is installed here; pip install 'grpo-pipeline[serving]', or [vllm]")
    return "transformers"


def server_command(
    weights: Path,
    folder: Path,
    *,
    model: str,
    host: str,
    port: int,
    engine: str = "auto",
    dtype: str = "auto",
    system_prompt: bool = True,
) -> ServerCommand:
    """The command that serves a model directory; makes the folder it runs in.

    Args:
        weights: a Hugging Face directory, already verified.
        folder: an own folder for the server.
        model: name that requests give as `model`.
        host: address to listen on.
        port: port to listen on.
        engine: `auto`, `vllm` or `transformers`.
        dtype: `auto`, float32, bfloat16 or float16.
        system_prompt: whether the contract's system prompt applies to requests that bring none.
    """
    chosen = choose_server(engine)
    folder.mkdir(parents=True, exist_ok=True)
    link = folder / model
    if link.is_symlink():
        link.unlink()
    link.symlink_to(weights.absolute())
    switch = [] if system_prompt else [json.dumps({SYSTEM_PROMPT_SWITCH: False})]
    place = ["--host", host, "--port", str(port), "--dtype", dtype]
    if chosen == "vllm":
        # `python -m` and not the `vllm` command: the CPU build's command is broken.
        arguments = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", f"./{model}"]
        arguments += ["--served-model-name", model, *place]
        arguments += [] if _has_gpu() else ["--enforce-eager"]
        arguments += ["--default-chat-template-kwargs", *switch] if switch else []
    else:
        # transformers' server knows a model only by the path it was given: a link gives it the name.
        arguments = [sys.executable, "-m", "transformers.cli.transformers", "serve", model, *place]
        arguments += [] if _has_gpu() else ["--device", "cpu"]
        arguments += ["--chat-template-kwargs", *switch] if switch else []
    environment = {
        "HF_HUB_CACHE": str(_listed(weights, folder / "hub", model)),
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_UPDATE_CHECK": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    return ServerCommand(chosen, arguments, folder, environment)


def verify_folder(folder: Path) -> bool:
    """Compare a model directory with the manifest in it, where there is one.

    Args:
        folder: a Hugging Face directory.

    Returns:
        Whether there was a manifest to compare with.

    Raises:
        BadInputError: the folder is no model directory.
        DamagedArtifactError: a file differs from its manifest; names it.
    """
    if not (folder / "config.json").exists():
        raise BadInputError(f"{folder} is not a model directory: it has no config.json")
    path = folder / MANIFEST
    if not path.exists():
        return False
    manifest = Manifest.from_bytes(path.read_bytes(), str(folder))
    fault = find_fault(folder, manifest)
    if fault is not None:
        raise DamagedArtifactError(f"{folder}: {fault}; its step must write it anew")
    return True


def server_log_tail(log: Path, lines: int = 3) -> str:
    """The last lines a server wrote, for a message.

    Args:
        log: its log file.
        lines: how many.
    """
    if not log.exists():
        return "(it wrote nothing)"
    found = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return " | ".join(found[-lines:])[-600:] or "(it wrote nothing)"


def run_server(command: ServerCommand) -> None:
    """Become the server: this process does not return.

    Args:
        command: from `server_command`.
    """
    os.chdir(command.folder)
    os.execvpe(command.arguments[0], command.arguments, {**os.environ, **command.environment})  # noqa: S606


def _listed(weights: Path, cache: Path, model: str) -> Path:
    """A hub cache that holds the model's config: `transformers serve` lists what is in there under /v1/models."""
    commit = "0" * 40
    repository = cache / f"models--{model}"
    (repository / "refs").mkdir(parents=True, exist_ok=True)
    (repository / "refs" / "main").write_text(commit, encoding="utf-8")
    snapshot = repository / "snapshots" / commit
    snapshot.mkdir(parents=True, exist_ok=True)
    link = snapshot / "config.json"
    link.unlink(missing_ok=True)
    link.symlink_to((weights / "config.json").absolute())
    return cache


def _has_gpu() -> bool:
    return shutil.which("nvidia-smi") is not None or Path("/dev/nvidia0").exists()

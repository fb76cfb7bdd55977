"""Batch generation: what a caller asks for, what it gets, and the choice of an engine.

Called by evaluate_holdout, smoke_test_rewards and `grpo rewards sample`, as

    with open_generator(model_directory, engine="auto") as generator:
        answers = generator.generate(prompts, Sampling(max_new_tokens=256))

Prompts are text already rendered through a chat template: no special token is added to them. Completions come back in
the order of the prompts. The engines are `transformers` (CPU or one GPU) and `vllm` (GPU); each is imported only when
chosen. Neither serves adapters, images or tools.
"""

import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, Protocol

from components.errors import BadInputError

Engine = Literal["auto", "transformers", "vllm"]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen.

    Attributes:
        max_new_tokens: most tokens a completion may have, its end token included.
        temperature: 0 for greedy decoding, else the softmax temperature.
        top_p: nucleus: the smallest set of tokens with at least this probability in all; 1 keeps all.
        n: completions a prompt.
        seed: of the random numbers; a completion depends on the seed, its prompt and its index, not on the batch.
        top_k: keep the k likeliest tokens; 0 keeps all; None takes the model's generation_config.json.
        repetition_penalty: divides the scores of tokens already in the text (Keskar et al. 2019); 1 is none; None takes
            the model's generation_config.json.
    """

    max_new_tokens: int = 512
    temperature: float = 0.0
    top_p: float = 1.0
    n: int = 1
    seed: int = 0
    top_k: int | None = 0
    repetition_penalty: float | None = 1.0

    def __post_init__(self) -> None:
        """Refuse values no engine could sample with."""
        rules = (
            (self.max_new_tokens >= 1, "max_new_tokens", self.max_new_tokens, "at least 1"),
            (self.temperature >= 0, "temperature", self.temperature, "0 (greedy) or more"),
            (0 < self.top_p <= 1, "top_p", self.top_p, "above 0 and at most 1"),
            (self.n >= 1, "n", self.n, "at least 1"),
            (self.top_k is None or self.top_k >= 0, "top_k", self.top_k, "0 (all tokens) or more"),
            (
                self.repetition_penalty is None or self.repetition_penalty > 0,
                "repetition_penalty",
                self.repetition_penalty,
                "above 0 (1 is none)",
            ),
        )
        for valid, name, value, allowed in rules:
            if not valid:
                raise BadInputError(f"sampling {name} is {value}; it must be {allowed}")

    def resolved(self, defaults: Mapping[str, Any]) -> "Sampling":
        """The same with `top_k` and `repetition_penalty` filled in.

        Args:
            defaults: what `generation_defaults` read beside the model.
        """
        top_k = defaults.get("top_k", 0) if self.top_k is None else self.top_k
        penalty = (
            defaults.get("repetition_penalty", 1.0) if self.repetition_penalty is None else self.repetition_penalty
        )
        return replace(self, top_k=int(top_k), repetition_penalty=float(penalty))


@dataclass(frozen=True)
class Completion:
    """One answer of the model.

    Attributes:
        text: decoded without special tokens (end of turn, padding), as training and serving decode it.
        tokens: tokens generated, the end token included.
        truncated: the token limit was hit before an end token.
        ids: the generated tokens, the end token included.
    """

    text: str
    tokens: int
    truncated: bool
    ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class EngineIdentity:
    """What must be the same for two evaluations to be comparable (with sampling, contract and data).

    Attributes:
        engine: `transformers` or `vllm`.
        version: of that library.
        dtype: weights and arithmetic, such as `bfloat16`.
        device: kind of device, `cpu` or `cuda`.
    """

    engine: str
    version: str
    dtype: str
    device: str


class Generator(Protocol):
    """A model loaded into an engine."""

    identity: EngineIdentity

    def generate(
        self, prompts: list[str], sampling: Sampling, on_progress: Progress | None = None
    ) -> list[list[Completion]]:
        """Complete each prompt `sampling.n` times.

        Args:
            prompts: rendered texts; may repeat.
            sampling: how tokens are chosen.
            on_progress: called now and then with completions done and completions in all.

        Returns:
            One list of n completions a prompt, in the order of the prompts.

        Raises:
            BadInputError: a prompt is empty or does not fit the model's context with its completion.
        """
        ...


def generation_defaults(model_directory: Path) -> dict[str, Any]:
    """What the model's own generation_config.json states (nothing where there is none; library defaults left out)."""
    path = Path(model_directory) / "generation_config.json"
    if not path.exists():
        return {}
    stated: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return {name: value for name, value in stated.items() if value is not None}


def choose_engine(engine: str, device: str) -> str:
    """The engine that `auto` means here: vLLM where it is installed and a GPU is visible, else transformers.

    Args:
        engine: `auto`, `transformers` or `vllm`.
        device: `auto`, `cpu` or `cuda`.

    Raises:
        BadInputError: unknown engine, or vLLM asked for where it is not installed.
    """
    if engine == "transformers":
        return engine
    installed = find_spec("vllm") is not None
    if engine == "vllm":
        if not installed:
            raise BadInputError(
                "evaluation engine is vllm and vllm is not installed here; install the extra (pip install "
                "'grpo-pipeline[vllm]') on a machine with a GPU, or set engine: transformers"
            )
        return engine
    if engine != "auto":
        raise BadInputError(f"engine {engine!r} is not known; use auto, transformers or vllm")
    if not installed or device == "cpu":
        return "transformers"
    import torch

    return "vllm" if torch.cuda.is_available() else "transformers"


def identify(engine: str = "auto", *, dtype: str = "auto", device: str = "auto") -> EngineIdentity:
    """What `open_generator` would open with these arguments, without loading a model (for a cache key).

    Args:
        engine: `auto`, `transformers` or `vllm`.
        dtype: `auto`, `float32`, `bfloat16` or `float16`.
        device: `auto`, `cpu` or `cuda`.

    Raises:
        BadInputError: one of them is unknown or not to be had here.
    """
    chosen = choose_engine(engine, device)
    from components.generation.placement import choose_device, choose_dtype

    place = choose_device(device)
    return EngineIdentity(chosen, _version(chosen), choose_dtype(dtype, place), place)


def _version(package: str) -> str:
    """Version of an importable package, under whatever name it was installed (vLLM's CPU build has its own)."""
    try:
        return version(package)
    except PackageNotFoundError:
        return version(packages_distributions()[package][0])


def open_generator(
    model_directory: Path | str,
    engine: str = "auto",
    *,
    dtype: str = "auto",
    device: str = "auto",
    batch_size: int | None = None,
) -> AbstractContextManager[Generator]:
    """Load a model directory into an engine; leaving the context frees it.

    Args:
        model_directory: Hugging Face directory with config, safetensors and tokenizer.
        engine: `auto`, `transformers` or `vllm`.
        dtype: `auto` (bfloat16 on a GPU, float32 on a CPU), `float32`, `bfloat16` or `float16`.
        device: `auto`, `cpu` or `cuda`.
        batch_size: most completions generated at once; None lets the engine choose from the memory there is.

    Raises:
        BadInputError: the directory holds no model, or the engine or device is not available here.
    """
    directory = Path(model_directory)
    if not (directory / "config.json").exists():
        raise BadInputError(f"{directory} is not a model directory: it has no config.json")
    if batch_size is not None and batch_size < 1:
        raise BadInputError(f"batch_size is {batch_size}; it must be at least 1, or left out")
    if choose_engine(engine, device) == "vllm":
        from components.generation.vllm_engine import open_vllm

        return open_vllm(directory, dtype=dtype, device=device, batch_size=batch_size)
    from components.generation.transformers_engine import open_transformers

    return open_transformers(directory, dtype=dtype, device=device, batch_size=batch_size)

"""The vLLM engine: the GPU's way to generate a holdout in minutes. Imported only when chosen.

Called through `open_generator`. Prompts go in as token ids and completions come out as token ids, so that text is made
from tokens here exactly as in the transformers engine. vLLM batches, caches prefixes and sorts by itself; progress is
reported by chunk. For vLLM 0.22 to 0.31 (what TRL 1.16 supports) on a GPU; its CPU build works too, slowly to start.
"""

import gc
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import vllm
from transformers import AutoTokenizer

from components.generation.interface import (
    Completion,
    EngineIdentity,
    Progress,
    Sampling,
    generation_defaults,
    identify,
)
from components.generation.tokens import encode_prompts, stop_token_ids, to_completion

CHUNK = 1024  # prompts handed over at once: enough to keep the engine full, few enough to see progress
MEMORY_SHARE = 0.9


class VllmGenerator:
    """A model loaded into a vLLM engine in this process."""

    def __init__(self, directory: Path, engine: Any, tokenizer: Any, identity: EngineIdentity) -> None:
        self.engine, self.tokenizer, self.identity = engine, tokenizer, identity
        self.defaults = generation_defaults(directory)
        self.stops = stop_token_ids(tokenizer, self.defaults)
        self.context: int = engine.llm_engine.model_config.max_model_len

    def generate(
        self, prompts: list[str], sampling: Sampling, on_progress: Progress | None = None
    ) -> list[list[Completion]]:
        """See `Generator.generate`."""
        sampling = sampling.resolved(self.defaults)
        encoded = encode_prompts(self.tokenizer, prompts, sampling.max_new_tokens, self.context)
        parameters = self._parameters(sampling)
        stops = frozenset(self.stops)
        # Longest first: prompts of one length share batches, and what does not fit fails at once.
        order = sorted(range(len(encoded)), key=lambda index: -len(encoded[index]))
        answers: list[list[Completion]] = [[] for _ in prompts]
        for start in range(0, len(order), CHUNK):
            chunk = order[start : start + CHUNK]
            requests = [{"prompt_token_ids": encoded[index]} for index in chunk]
            outputs = self.engine.generate(requests, sampling_params=parameters, use_tqdm=False)
            for index, output in zip(chunk, outputs, strict=True):
                answers[index] = [
                    to_completion(self.tokenizer, list(one.token_ids), stops, sampling.max_new_tokens)
                    for one in sorted(output.outputs, key=lambda one: one.index)
                ]
            if on_progress is not None:
                on_progress((start + len(chunk)) * sampling.n, len(order) * sampling.n)
        return answers

    def _parameters(self, sampling: Sampling) -> Any:
        """vLLM's own form of the sampling."""
        return vllm.SamplingParams(
            n=sampling.n,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k or -1,
            repetition_penalty=sampling.repetition_penalty,
            max_tokens=sampling.max_new_tokens,
            stop_token_ids=self.stops,
            seed=None if sampling.temperature == 0 else sampling.seed,
            detokenize=False,
        )


@contextmanager
def open_vllm(directory: Path, *, dtype: str, device: str, batch_size: int | None) -> Iterator[VllmGenerator]:
    """Load a model directory into vLLM; see `open_generator`.

    Raises:
        BadInputError: the device is not to be had.
    """
    identity = identify("vllm", dtype=dtype, device=device)
    tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True)
    options: dict[str, Any] = {"max_num_seqs": batch_size} if batch_size is not None else {}
    if identity.device == "cuda":
        options["gpu_memory_utilization"] = MEMORY_SHARE
    else:
        options["enforce_eager"] = True  # compiling takes minutes on a CPU, more than it saves
    engine = vllm.LLM(
        model=str(directory),
        dtype=identity.dtype,
        seed=0,
        # The sampling is stated in full with every request; vLLM must not add the model's own on top.
        generation_config="vllm",
        enable_prefix_caching=True,
        max_model_len=_context(directory),
        disable_log_stats=True,
        **options,
    )
    try:
        yield VllmGenerator(directory, engine, tokenizer, identity)
    finally:
        engine.llm_engine.engine_core.shutdown()
        del engine
        gc.collect()


def _context(directory: Path) -> int | None:
    """The model's context, at most 32,768: vLLM reserves memory for one request of that length."""
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    stated = config.get("max_position_embeddings") or config.get("text_config", {}).get("max_position_embeddings")
    return None if stated is None else min(int(stated), 32_768)

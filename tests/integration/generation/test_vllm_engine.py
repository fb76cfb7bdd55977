"""The vLLM engine beside the transformers engine; runs where vLLM is installed (its CPU build will do)."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from components.generation import Sampling, identify, open_generator

MODEL = Path(__file__).parents[3] / "configs" / "quickstart" / "model"
HOLDOUT = MODEL.parent / "data" / "holdout.jsonl"

pytestmark = [pytest.mark.slow, pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")]


def test_both_engines_give_the_same_greedy_tokens_and_sampling_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "VLLM_ENABLE_V1_MULTIPROCESSING", "0"
    )  # the engine in this process: pytest cannot be re-imported
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    rows = [json.loads(line) for line in HOLDOUT.read_text().splitlines()[:20]]
    prompts = [f"<|user|>{row['question']}<|end|><|assistant|>" for row in rows]
    sampled = Sampling(max_new_tokens=20, temperature=1.0, top_p=0.9, top_k=20, n=3, seed=5)
    settings = {"device": "cpu", "dtype": "float32", "batch_size": 8}
    with open_generator(MODEL, "transformers", **settings) as generator:  # type: ignore[arg-type]
        greedy = generator.generate(prompts, Sampling(max_new_tokens=30))
        penalised = generator.generate(prompts, Sampling(max_new_tokens=30, repetition_penalty=1.3))
    reported: list[tuple[int, int]] = []
    with open_generator(MODEL, "vllm", **settings) as generator:  # type: ignore[arg-type]
        assert generator.identity == identify("vllm", device="cpu", dtype="float32")
        assert generator.generate(prompts, Sampling(max_new_tokens=30), lambda *done: reported.append(done)) == greedy
        assert generator.generate(prompts, Sampling(max_new_tokens=30, repetition_penalty=1.3)) == penalised
        first = generator.generate(prompts[:4], sampled)
        assert generator.generate(prompts[:4], sampled) == first
    assert reported[-1] == (20, 20)
    assert [len(group) for group in first] == [3] * 4

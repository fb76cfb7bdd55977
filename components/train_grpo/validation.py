"""Greedy completions of the policy on validation rows while it trains: compliance with the format, and accuracy.

Called by callbacks.py and stages.py on rank 0. Changes nothing of the training: weights, mode and random state are as
before. The holdout is never read here.
"""

import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import PeftModel

from components.contract import Contract
from components.generation.interface import EngineIdentity, Sampling
from components.generation.transformers_engine import TransformersGenerator
from components.train_grpo.selection import ACCURACY, COMPLIANCE


class Validator:
    """Checks a policy on a fixed slice of the validation split.

    Args:
        directory: the base model's folder (its generation defaults).
        tokenizer: the policy's.
        contract: says what is in the format and what is right.
        rows: the validation split.
        limit: rows used, the first ones; 0 checks nothing.
        max_new_tokens: as in training.
        version: of transformers, for the engine's identity.
    """

    def __init__(
        self,
        directory: Path,
        tokenizer: Any,
        contract: Contract,
        rows: Dataset,
        *,
        limit: int,
        max_new_tokens: int,
        version: str,
    ) -> None:
        rows = rows.select(range(min(limit, len(rows))))
        self._directory, self._tokenizer, self._contract = directory, tokenizer, contract
        self._golds = [str(row["answer"]) for row in rows]
        self._prompts = [contract.render(tokenizer, row) for row in rows]
        self._sampling = Sampling(max_new_tokens=max_new_tokens)
        self._version = version

    def __bool__(self) -> bool:
        """Whether there is anything to check with."""
        return bool(self._prompts)

    def check(self, policy: Any) -> dict[str, float]:
        """Complete each prompt greedily and judge it.

        Args:
            policy: the model being trained, not wrapped for several processes.

        Returns:
            Compliance and accuracy (0 to 1), rows and seconds, by metric name.
        """
        started = time.perf_counter()
        model = policy.get_base_model() if isinstance(policy, PeftModel) else policy
        identity = EngineIdentity(
            "transformers", self._version, str(model.dtype).removeprefix("torch."), model.device.type
        )
        training = policy.training
        policy.eval()
        try:
            with torch.random.fork_rng(enabled=True):
                generator = TransformersGenerator(self._directory, model, self._tokenizer, identity, None)
                answers = generator.generate(self._prompts, self._sampling)
        finally:
            policy.train(training)
        texts = [answer[0].text for answer in answers]
        strict = [self._contract.check(text).strict for text in texts]
        read = [self._contract.read_answer(text) for text in texts]
        right = [
            answer is not None and self._contract.equal(answer, gold)
            for answer, gold in zip(read, self._golds, strict=True)
        ]
        return {
            COMPLIANCE: sum(strict) / len(texts),
            ACCURACY: sum(s and r for s, r in zip(strict, right, strict=True)) / len(texts),
            "validation/rows": float(len(texts)),
            "validation/seconds": round(time.perf_counter() - started, 3),
        }

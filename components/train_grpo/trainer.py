"""TRL's GRPOTrainer with a clock and two more metrics; nothing of what is learned changes. Made by stages.py.

Adds to each logged row: seconds a step spent generating, scoring and updating, tokens a second, the share of groups
that are one completion G times over, and the highest reward there can be (for the guards).
"""

import time
from typing import Any

from trl import GRPOTrainer

from components.errors import GateFailedError
from components.train_grpo.guards import HIGHEST_REWARD, IDENTICAL_GROUPS


class MeasuredGRPOTrainer(GRPOTrainer):
    """GRPOTrainer that says where the time goes."""

    _generation_seconds = 0.0
    _reward_seconds = 0.0
    _batch_seconds = 0.0
    _tokens = 0.0

    def _generate(self, prompts: list[Any]) -> Any:
        started = time.perf_counter()
        try:
            result = super()._generate(prompts)
        except RuntimeError as error:
            if "probability tensor contains" not in str(error):
                raise
            raise GateFailedError(
                f"training stopped: the policy's scores are no longer finite at step {self.state.global_step + 1}; the "
                "last good checkpoint is kept. Try a lower training.learning_rate, training.max_grad_norm: 0.1, or "
                "model.dtype: float32"
            ) from error
        self._generation_seconds += time.perf_counter() - started
        return result

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> Any:
        started = time.perf_counter()
        result = super()._calculate_rewards(*args, **kwargs)
        self._reward_seconds += time.perf_counter() - started
        return result

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        result = super()._generate_and_score_completions(inputs)
        if self.model.training:
            metrics = self._metrics["train"]
            metrics[IDENTICAL_GROUPS].append(identical_groups(list(self._logs["completion"]), self.num_generations))
            metrics[HIGHEST_REWARD].append(float(self.reward_weights.clamp(min=0).sum()))
            self._tokens += metrics["completions/mean_length"][-1] * len(self._logs["completion"])
        return result

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """TRL's, timed; after the last micro-batch of a step the times go to its metrics."""
        started = time.perf_counter()
        result = super().training_step(*args, **kwargs)
        self._batch_seconds += time.perf_counter() - started
        if self._step % self.current_gradient_accumulation_steps == 0:
            metrics = self._metrics["train"]
            update = self._batch_seconds - self._generation_seconds - self._reward_seconds
            metrics["time/generation"].append(self._generation_seconds)
            metrics["time/rewards"].append(self._reward_seconds)
            metrics["time/update"].append(update)
            for name, seconds in (
                ("generation", self._generation_seconds),
                ("rewards", self._reward_seconds),
                ("update", update),
                ("step", self._batch_seconds),
            ):
                if seconds > 0 and self._tokens:
                    metrics[f"tokens_per_second/{name}"].append(self._tokens / seconds)
            self._generation_seconds = self._reward_seconds = self._batch_seconds = self._tokens = 0.0
        return result


def identical_groups(completions: list[Any], group_size: int) -> float:
    """Share of groups that are one completion over and over.

    Args:
        completions: chat messages or texts, group after group.
        group_size: G.

    Returns:
        0 to 1; 0 when there is no group.
    """
    texts = [completion[-1]["content"] if isinstance(completion, list) else completion for completion in completions]
    groups = [texts[start : start + group_size] for start in range(0, len(texts), group_size)]
    return sum(len(set(group)) == 1 for group in groups) / len(groups) if groups else 0.0

"""The library in a bare `GRPOTrainer`, and the guard's functions in the same: TRL's own code calls them."""

from pathlib import Path

import pytest

from components.contract import default_contract
from components.contract.config import ContractConfig
from components.rewards import build_rewards
from components.rewards.config import RewardsConfig
from components.rewards.guard import RewardGuard

pytestmark = pytest.mark.slow
NAUGHTY = Path(__file__).with_name("naughty.py")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A random model of a few thousand weights with a character tokenizer."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate(["<pad>", "<eos>", *alphabet])}
    raw = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    raw.pre_tokenizer, raw.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="<pad>", eos_token="<eos>")
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}\n{% endfor %}"
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer), hidden_size=16, intermediate_size=16, num_hidden_layers=1,
            num_attention_heads=2, pad_token_id=0, eos_token_id=1, bos_token_id=1,
        )
    )  # fmt: skip
    return model, tokenizer


def train(tiny, functions, weights, folder, steps=2):
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    model, tokenizer = tiny
    rows = [
        {"prompt": default_contract().messages("7 + 5?"), "answer": "12", "question": "7 + 5?", "tests": None}
    ] * 8  # fmt: skip
    arguments = GRPOConfig(
        output_dir=str(folder), use_cpu=True, bf16=False, report_to=[], max_steps=steps, logging_steps=1,
        per_device_train_batch_size=4, num_generations=4, max_completion_length=8, reward_weights=weights,
        log_completions=True, save_strategy="no", gradient_checkpointing=False,
    )  # fmt: skip
    trainer = GRPOTrainer(
        model=model, processing_class=tokenizer, reward_funcs=functions, args=arguments,
        train_dataset=Dataset.from_list(rows),
    )  # fmt: skip
    trainer.train()
    return trainer.state.log_history


def test_every_reward_of_the_library_runs_in_a_bare_trainer(tiny, tmp_path):
    options = {
        "length": {"ideal": 5}, "soft_overlong_punishment": {"max_completion_length": 8, "cache": 4},
        "json_schema": {"json_schema": {"type": "object"}},
    }  # fmt: skip
    names = [
        "correctness", "strict_format", "soft_format", "incremental_format", "exact_match", "fuzzy_match", "numeric",
        "latex_accuracy", "json_validity", "repetition_penalty", "reasoning_steps", "citation", "language_consistency",
        *options,
    ]  # fmt: skip
    config = RewardsConfig.model_validate({name: {"options": options.get(name, {})} for name in names})
    rewards = build_rewards(config, default_contract())
    history = train(tiny, [r.function for r in rewards], [r.weight for r in rewards], tmp_path)
    for name in names:
        assert f"rewards/{name}/mean" in history[0]


def test_in_the_guard_a_reward_that_fails_shows_as_errors_and_training_goes_on(tiny, tmp_path):
    entries = {
        name: {"use": f"{NAUGHTY}:{name}"} for name in ("length", "always_raises", "logs", "knows_the_step", "prints")
    }
    config = RewardsConfig.model_validate({"correctness": 2.0, "guard": {"max_error_rate": 1.0}, **entries})
    with RewardGuard(config, ContractConfig()) as guard:
        history = train(tiny, guard.functions(), [r.weight for r in guard.rewards], tmp_path)
    assert [entry["errors/always_raises"] for entry in history[:2]] == [1.0, 1.0]
    assert [entry["errors/length"] for entry in history[:2]] == [0.0, 0.0]
    assert history[0]["logs/count"] == 4.0
    # Every reward of such a completion is None, so nothing is learned from it, and nothing is paid for it either.
    assert history[0]["rewards/length/mean"] is None


def test_in_the_guard_scores_are_those_of_the_bare_functions(tiny, tmp_path):
    config = RewardsConfig.model_validate({"preset": "maths", "length": {"options": {"ideal": 3}}})
    seen = {}

    def remember(function):
        def wrapped(prompts, completions, **columns):
            values = function(prompts=prompts, completions=completions, **columns)
            arguments = {k: v for k, v in columns.items() if k not in ("log_extra", "log_metric", "trainer_state")}
            seen.setdefault(function.__name__, []).append((prompts, completions, arguments, values))
            return values

        wrapped.__name__ = function.__name__
        return wrapped

    with RewardGuard(config, ContractConfig()) as guard:
        weights = [r.weight for r in guard.rewards]
        history = train(tiny, [remember(f) for f in guard.functions()], weights, tmp_path)
    assert len(history) >= 2
    for reward in build_rewards(config, default_contract()):
        for prompts, completions, columns, values in seen[reward.name]:
            assert reward.function(prompts=prompts, completions=completions, **columns) == values


def test_soft_overlong_punishment_is_trls():
    from trl.rewards import get_soft_overlong_punishment

    from components.rewards import library_reward

    ids = [[0] * n for n in range(120)]
    ours = library_reward("soft_overlong_punishment", max_completion_length=100, cache=20).function
    theirs = get_soft_overlong_punishment(max_completion_len=100, soft_punish_cache=20)
    assert ours(prompts=[None] * 120, completions=[""] * 120, completion_ids=ids) == theirs(completion_ids=ids)

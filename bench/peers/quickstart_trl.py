"""The quickstart as one plain TRL script: train, merge, evaluate the base model and the merged one.

The values are those of configs/quickstart.yaml (a test holds them together). The rewards are the library's functions,
called directly, so that both sides learn from the same numbers; nothing else of the pipeline is used.

python bench/peers/quickstart_trl.py OUT [--steps N] [--train-only]
"""
# ruff: noqa: E402 (imports are timed)

import time

started = time.perf_counter()

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from datasets import load_dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, set_seed
from trl import GRPOConfig, GRPOTrainer

from components.contract import build_contract
from components.contract.config import ContractConfig
from components.rewards import build_rewards
from components.rewards.config import RewardsConfig

imported = time.perf_counter()

SYSTEM_PROMPT = "Reply as <reasoning>...</reasoning><answer>...</answer>."
REWARDS = {"correctness": 2.0, "strict_format": 1.0, "incremental_format": 0.5}
SEED = 42
VALIDATION_ROWS = 128
EVALUATION_BATCH = 128
NEW_TOKENS = 56
TRAINING = {
    "learning_rate": 5.0e-4,
    "lr_scheduler_type": "linear",
    "num_generations": 8,
    "per_device_train_batch_size": 32,
    "max_completion_length": 56,
    "max_steps": 40,
    "temperature": 1.0,
    "optim": "adamw_torch",
    "logging_steps": 1,
    "save_steps": 20,
}
LORA = {"r": 16, "lora_alpha": 32, "lora_dropout": 0.0, "target_modules": "all-linear"}


def evaluate(folder: Path, rows: Any, tokenizer: Any, contract: Any) -> float:
    """Greedy completions of the holdout, and the share that is right."""
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    right = 0
    with torch.inference_mode():
        for start in range(0, len(rows), EVALUATION_BATCH):
            batch = rows[start : start + EVALUATION_BATCH]
            texts = [
                tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
                for prompt in batch["prompt"]
            ]
            inputs = tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
            output = model.generate(
                **inputs, max_new_tokens=NEW_TOKENS, do_sample=False, pad_token_id=tokenizer.pad_token_id
            )
            completions = tokenizer.batch_decode(output[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
            for text, gold in zip(completions, batch["answer"], strict=True):
                answer = contract.read_answer(text)
                right += answer is not None and contract.equal(answer, gold)
    return right / len(rows)


def main() -> None:
    """Train, merge, evaluate twice."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=TRAINING["max_steps"])
    parser.add_argument("--train-only", action="store_true")
    options = parser.parse_args()
    home = Path(__file__).parent.parent.parent / "configs" / "quickstart"
    torch.set_num_threads(1)
    set_seed(SEED)
    said: dict[str, Any] = {"imports_s": imported - started}

    def chat(row: dict[str, Any]) -> dict[str, Any]:
        return {"prompt": [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": row["question"]}]}

    cache = str(options.out / "cache")
    train = load_dataset("json", data_files=str(home / "data" / "train.jsonl"), split="train", cache_dir=cache)
    train = train.map(chat).train_test_split(test_size=VALIDATION_ROWS, seed=SEED)["train"]
    tokenizer = AutoTokenizer.from_pretrained(home / "model", padding_side="left")
    contract = build_contract(ContractConfig(system_prompt=SYSTEM_PROMPT))
    rewards = build_rewards(RewardsConfig.model_validate(REWARDS), contract)
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(home / "model"),
        processing_class=tokenizer,
        reward_funcs=[reward.function for reward in rewards],
        train_dataset=train,
        args=GRPOConfig(
            **TRAINING | {"max_steps": options.steps},
            output_dir=str(options.out / "trainer"),
            reward_weights=[reward.weight for reward in rewards],
            seed=SEED,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            dataloader_pin_memory=False,
            report_to="none",
            disable_tqdm=True,
        ),
        peft_config=LoraConfig(task_type="CAUSAL_LM", **LORA),
    )
    begun = time.perf_counter()
    trainer.train()
    said["train_s"] = round(time.perf_counter() - begun, 3)
    said["steps"] = options.steps
    said["curve"] = [round(row["reward"], 4) for row in trainer.state.log_history if "reward" in row]
    said["tokens"] = trainer.state.log_history[-2]["num_tokens"]
    if not options.train_only:
        merged = trainer.model.merge_and_unload()
        merged.save_pretrained(options.out / "merged")
        tokenizer.save_pretrained(options.out / "merged")
        holdout = load_dataset("json", data_files=str(home / "data" / "holdout.jsonl"), split="train", cache_dir=cache)
        holdout = holdout.map(chat)
        said["base"] = evaluate(home / "model", holdout, tokenizer, contract)
        said["candidate"] = evaluate(options.out / "merged", holdout, tokenizer, contract)
    print(json.dumps(said))


if __name__ == "__main__":
    main()

"""The quickstart as one plain TRL script: train, merge, evaluate the base model and the merged one.

The values are read from configs/quickstart.yaml, so that they cannot differ. The rewards are the library's functions,
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
import yaml
from datasets import load_dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, set_seed
from trl import GRPOConfig, GRPOTrainer

from components.contract import build_contract
from components.contract.config import ContractConfig
from components.rewards import build_rewards
from components.rewards.config import RewardsConfig

imported = time.perf_counter()

HOME = Path(__file__).parent.parent.parent / "configs"
CONFIG = yaml.safe_load((HOME / "quickstart.yaml").read_text(encoding="utf-8"))
SYSTEM_PROMPT = CONFIG["contract"]["system_prompt"]
SEED = CONFIG["run"]["seed"]
NOT_TRL = {
    "prompts_per_step",
    "sample_every",
    "threads",
    "validation_rows",
    "validate_every",
    "keep",
    "patience",
    "guards",
}
TRAINING = {key: value for key, value in CONFIG["training"].items() if key not in NOT_TRL}
LORA = CONFIG["lora"]
EVALUATION = CONFIG["evaluation"]


def evaluate(folder: Path, rows: Any, tokenizer: Any, contract: Any) -> float:
    """Greedy completions of the holdout, and the share that is right."""
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    right = 0
    with torch.inference_mode():
        for start in range(0, len(rows), EVALUATION["batch_size"]):
            batch = rows[start : start + EVALUATION["batch_size"]]
            texts = [
                tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
                for prompt in batch["prompt"]
            ]
            inputs = tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
            output = model.generate(
                **inputs,
                max_new_tokens=EVALUATION["max_new_tokens"],
                do_sample=False,
                pad_token_id=tokenizer.pad_token_id,
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
    home = HOME / "quickstart"
    torch.set_num_threads(CONFIG["training"]["threads"])
    set_seed(SEED)
    said: dict[str, Any] = {"imports_s": imported - started}

    def chat(row: dict[str, Any]) -> dict[str, Any]:
        return {"prompt": [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": row["question"]}]}

    cache = str(options.out / "cache")
    train = load_dataset("json", data_files=str(home / "data" / "train.jsonl"), split="train", cache_dir=cache)
    train = train.map(chat).train_test_split(test_size=CONFIG["data"]["validation_rows"], seed=SEED)["train"]
    tokenizer = AutoTokenizer.from_pretrained(home / "model", padding_side="left")
    contract = build_contract(ContractConfig(system_prompt=SYSTEM_PROMPT))
    rewards = build_rewards(RewardsConfig.model_validate(CONFIG["rewards"]), contract)
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
        peft_config=LoraConfig(
            task_type="CAUSAL_LM",
            r=LORA["r"],
            lora_alpha=LORA["alpha"],
            lora_dropout=LORA["dropout"],
            target_modules=LORA["target_modules"],
        ),
    )
    begun, cpu = time.perf_counter(), time.process_time()
    trainer.train()
    said["train_s"] = round(time.perf_counter() - begun, 3)
    said["train_cpu_s"] = round(time.process_time() - cpu, 3)
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

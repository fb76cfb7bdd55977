"""A bare GRPOTrainer on a GPU: LoRA, bfloat16, G=16, with transformers or vLLM in the same process generating.

python bench/peers/gpu_grpo.py MODEL OUT --steps N --tokens N [--vllm]
"""
# ruff: noqa: E402 (imports are timed)

import time

started = time.perf_counter()

import argparse
import json
from pathlib import Path

import torch
from datasets import load_dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from components.contract import build_contract
from components.contract.config import ContractConfig
from components.rewards import build_rewards
from components.rewards.config import RewardsConfig

imported = time.perf_counter()

SYSTEM_PROMPT = "Reply as <reasoning>...</reasoning><answer>...</answer>."
GROUP = 16


def main() -> None:
    """Train for some steps and say how long the loop took."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--tokens", type=int, required=True)
    parser.add_argument("--vllm", action="store_true")
    options = parser.parse_args()
    data = Path(__file__).parent.parent.parent / "configs" / "quickstart" / "data" / "train.jsonl"
    rows = load_dataset("json", data_files=str(data), split="train", cache_dir=str(options.out / "cache")).map(
        lambda row: {
            "prompt": [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": row["question"]}]
        }
    )
    contract = build_contract(ContractConfig(system_prompt=SYSTEM_PROMPT))
    config = RewardsConfig.model_validate({"correctness": 2.0, "strict_format": 1.0, "incremental_format": 0.5})
    rewards = build_rewards(config, contract)
    on_gpu = torch.cuda.is_available()
    vllm = {"use_vllm": True, "vllm_mode": "colocate", "vllm_gpu_memory_utilization": 0.3} if options.vllm else {}
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.bfloat16),
        processing_class=AutoTokenizer.from_pretrained(options.model, padding_side="left"),
        reward_funcs=[reward.function for reward in rewards],
        train_dataset=rows,
        args=GRPOConfig(
            output_dir=str(options.out / "trainer"),
            per_device_train_batch_size=GROUP,
            num_generations=GROUP,
            max_completion_length=options.tokens,
            max_steps=options.steps,
            learning_rate=1e-6,
            reward_weights=[reward.weight for reward in rewards],
            bf16=on_gpu,
            use_cpu=not on_gpu,
            gradient_checkpointing=False,
            optim="adamw_torch",
            logging_steps=1,
            seed=42,
            report_to="none",
            disable_tqdm=True,
            **vllm,
        ),
        peft_config=LoraConfig(
            task_type="CAUSAL_LM", r=16, lora_alpha=32, lora_dropout=0.0, target_modules="all-linear"
        ),
    )
    begun = time.perf_counter()
    trainer.train()
    seconds = time.perf_counter() - begun
    completions = options.steps * GROUP
    lengths = [row["completions/mean_length"] for row in trainer.state.log_history if "reward" in row]
    tokens = sum(lengths) / len(lengths) * completions
    print(
        json.dumps(
            {
                "imports_s": imported - started,
                "train_s": round(seconds, 3),
                "steps": options.steps,
                "tokens": tokens,
                "tokens_per_s": round(tokens / seconds, 1),
            }
        )
    )


if __name__ == "__main__":
    main()

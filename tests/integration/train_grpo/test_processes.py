"""Two real processes (gloo) train as one: the same gradients on the same completions, the same end after kill -9."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

pytestmark = [pytest.mark.slow, pytest.mark.timeout(500)]

STEP = """
import json, os, sys
from pathlib import Path
import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, set_seed
from trl import GRPOConfig
from components.train_grpo.trainer import MeasuredGRPOTrainer

model_folder, output = sys.argv[1:]
world, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
torch.set_num_threads(1)

class Fixed(MeasuredGRPOTrainer):
    def _generate_single_turn(self, prompt_ids, *args, **kwargs):
        # The n-th completion of the whole step is the same however many processes share it; lengths differ.
        first = rank * len(prompt_ids)
        end = self.processing_class.eos_token_id
        numbers = range(first, first + len(prompt_ids))
        return [[10 + (7 * n + j) % 90 for j in range(4 + n % 5)] + [end] for n in numbers], None

def reward(completions, completion_ids, **kwargs):
    return [float(sum(ids) % 11) for ids in completion_ids]

tokenizer = AutoTokenizer.from_pretrained(model_folder, padding_side="left")
model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
set_seed(1)
policy = get_peft_model(model, LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM"))
for name, parameter in policy.named_parameters():
    if "lora_B" in name:
        torch.nn.init.normal_(parameter, std=0.05)
rows = Dataset.from_list([{"prompt": [{"role": "user", "content": f"What is {i} plus 2?"}]} for i in range(10, 30)])
args = GRPOConfig(
    output_dir=output, per_device_train_batch_size=8 // world, gradient_accumulation_steps=1, num_generations=4,
    max_completion_length=16, max_steps=1, learning_rate=1.0, lr_scheduler_type="constant", optim="sgd",
    max_grad_norm=1e9, use_cpu=True, bf16=False, report_to="none", save_strategy="no", seed=1, logging_steps=1,
    gradient_checkpointing=False, dataloader_pin_memory=False, disable_tqdm=True,
)
before = {n: p.detach().clone() for n, p in policy.named_parameters() if p.requires_grad}
trainer = Fixed(model=policy, reward_funcs=reward, args=args, train_dataset=rows, processing_class=tokenizer)
trainer.train()
if rank == 0:
    from safetensors.torch import save_file
    trained = trainer.accelerator.unwrap_model(trainer.model)
    # With plain SGD at learning rate 1 the step is the gradient.
    save_file({n: (before[n] - p.detach()) for n, p in trained.named_parameters() if p.requires_grad},
              output + "/gradients.safetensors")
    row = trainer.state.log_history[0]
    Path(output, "row.json").write_text(json.dumps({k: row[k] for k in ("reward", "loss", "grad_norm")}))
"""


def run_step(folder, world):
    model = Path(__file__).parents[3] / "configs" / "quickstart" / "model"
    folder.mkdir()
    port = 29_500 + os.getpid() % 400 + world
    processes = []
    for rank in range(world):
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        if world > 1:
            environment |= {
                "WORLD_SIZE": str(world), "RANK": str(rank), "LOCAL_RANK": str(rank),
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
            }  # fmt: skip
        command = [sys.executable, "-c", STEP, str(model), str(folder)]
        processes.append(subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True))
    for process in processes:
        _, errors = process.communicate(timeout=200)
        assert process.returncode == 0, errors[-3000:]
    return load_file(folder / "gradients.safetensors"), json.loads((folder / "row.json").read_text())


def test_two_processes_have_the_gradients_of_one_on_the_same_completions(tmp_path):
    one, row_of_one = run_step(tmp_path / "one", 1)
    two, row_of_two = run_step(tmp_path / "two", 2)
    assert one.keys() == two.keys()
    largest = max(float(gradient.abs().max()) for gradient in one.values())
    assert largest > 1e-3, "a gradient to compare"
    for name in one:
        torch.testing.assert_close(two[name], one[name], rtol=1e-3, atol=1e-5 * largest)
    assert row_of_two["reward"] == pytest.approx(row_of_one["reward"])
    assert row_of_two["grad_norm"] == pytest.approx(row_of_one["grad_norm"], rel=1e-3)


def test_a_training_of_two_processes_is_resumed_and_ends_with_the_same_weights(make):
    settings = {"processes": 2, "per_device_train_batch_size": 4, "max_steps": 8, "validate_every": 4}
    undisturbed = make("two", **settings)
    result = undisturbed.finish()
    expected = undisturbed.weights(result)
    assert undisturbed.record(result)["batch"] == {
        "per_device": 4, "accumulation": 1, "processes": 2, "group_size": 4,
    }  # fmt: skip
    stopped = make("two-stopped", **settings)
    assert stopped.stop_at(3, signal.SIGTERM) == 4
    assert "checkpoint stored" in stopped.log()
    assert stopped.stop_at(5, signal.SIGKILL) in (-signal.SIGKILL, None)
    again = stopped.finish()
    assert "goes on from step" in stopped.log()
    assert stopped.weights(again) == expected
    assert sorted(stopped.logged(again, "reward")) == list(range(1, 9))

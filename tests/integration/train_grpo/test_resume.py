"""A training that is killed or told to stop goes on by itself, and ends with the weights of an undisturbed one."""

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from components.storage.store import fetch, open_store

pytestmark = pytest.mark.slow

MODEL = Path(__file__).parents[3] / "configs" / "quickstart" / "model"
STEPS = 10
PROGRAM = """
import json, sys
from pathlib import Path
from components.storage.store import open_store
from components.train_grpo.train import inputs_from_sections, train_grpo
from components.steps import step
given = json.loads(Path(sys.argv[1]).read_text())
with step("train_grpo"):
    inputs = inputs_from_sections(**given["sections"])
    trained = train_grpo(inputs, open_store(given["store"]), work=Path(given["work"]))
print(json.dumps({"reference": str(trained.reference), "run_id": trained.run_id, "reused": trained.reused}))
"""


@dataclass(frozen=True)
class Training:
    """One training in a folder of its own."""

    folder: Path

    @property
    def store(self):
        return open_store(str(self.folder / "store"))

    def start(self):
        (self.folder / "events.jsonl").write_text("")
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-c", PROGRAM, str(self.folder / "inputs.json")],
                env={**os.environ, "GRPO_EVENTS": str(self.folder / "events.jsonl"), "OMP_NUM_THREADS": "1"},
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def steps_done(self):
        lines = (self.folder / "events.jsonl").read_text().splitlines()
        return max((json.loads(line).get("done", 0) for line in lines), default=0)

    def stop_at(self, step, number):
        """Start, signal once a step is done; None when it ended before, else the exit code."""
        process = self.start()
        while self.steps_done() < step:
            if process.poll() is not None:
                return None
            time.sleep(0.05)
        process.send_signal(number)
        process.communicate(timeout=120)
        return process.returncode

    def finish(self):
        process = self.start()
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 0, (self.folder / "log").read_text()[-3000:]
        return json.loads(output.splitlines()[-1])

    def weights(self, result):
        folder = fetch(result["reference"])
        return hashlib.sha256((folder / "adapter_model.safetensors").read_bytes()).hexdigest()

    def logged_steps(self, result):
        from mlflow import MlflowClient

        client = MlflowClient(json.loads((self.folder / "inputs.json").read_text())["tracking"])
        return sorted({metric.step for metric in client.get_metric_history(result["run_id"], "reward")})

    def log(self):
        return (self.folder / "log").read_text()


@pytest.fixture(scope="module")
def make(tmp_path_factory):
    """Makes a training: the tiny model, a few rows, ten steps with a checkpoint every two."""
    from components.contract import build_contract
    from components.contract.config import ContractConfig
    from components.prepare_dataset.config import DataConfig
    from components.prepare_dataset.prepare_dataset import prepare_dataset

    def training(name, **extra):
        folder = tmp_path_factory.mktemp(name)
        rows = folder / "rows.jsonl"
        pairs = [(a, b) for a in range(10, 30) for b in range(2, 12)]
        sums = [{"question": f"What is {a} plus {b}?", "answer": str(a + b)} for a, b in pairs]
        rows.write_text("".join(json.dumps(row) + "\n" for row in sums))
        store = open_store(str(folder / "store"))
        base = store.put(MODEL, "models/tiny", provenance={})
        (folder / "prepare").mkdir()
        data = DataConfig.model_validate({"train": str(rows), "max_prompt_tokens": 200})
        prepared = prepare_dataset(data, build_contract(ContractConfig()), fetch(base), store, work=folder / "prepare")
        tracking = f"sqlite:///{folder / 'mlflow.db'}"
        settings = {
            "learning_rate": 1e-3, "num_generations": 4, "prompts_per_step": 2, "per_device_train_batch_size": 8,
            "max_completion_length": 24, "max_steps": STEPS, "save_steps": 2, "logging_steps": 1, "threads": 1,
            "validation_rows": 4, "optim": "adamw_torch", "sample_every": 3,
            **extra,
        }  # fmt: skip
        sections = {
            "run": json.dumps({"name": name, "seed": 3}),
            "model": "{}",
            "base": str(base),
            "dataset": str(prepared.dataset),
            "contract": "{}",
            "rewards": json.dumps({"incremental_format": 1.0, "correctness": 1.0}),
            "training": json.dumps(settings),
            "lora": json.dumps({"r": 4, "alpha": 8, "target_modules": "all-linear"}),
            "stages": "[]",
            "tracking": json.dumps({"uri": tracking}),
            "code": "test",
        }
        places = {"store": str(folder / "store"), "work": str(folder / "work"), "tracking": tracking}
        given = {"sections": sections, **places}
        (folder / "inputs.json").write_text(json.dumps(given))
        return Training(folder)

    return training


@pytest.fixture(scope="module")
def undisturbed(make):
    training = make("undisturbed")
    result = training.finish()
    return training, result, training.weights(result)


def test_found_again_when_it_is_already_done(undisturbed):
    training, result, _ = undisturbed
    again = training.finish()
    assert again == {**result, "reused": True}


def test_killed_again_and_again_it_ends_with_the_same_weights(make, undisturbed):
    training = make("killed")
    source = random.Random(5)
    for target in sorted(source.sample(range(1, STEPS), 4)):
        assert training.stop_at(target, signal.SIGKILL) in (-signal.SIGKILL, None)
    result = training.finish()
    assert "goes on from step" in training.log()
    assert training.weights(result) == undisturbed[2]
    assert training.logged_steps(result) == list(range(1, STEPS + 1))


def test_told_to_stop_it_saves_at_the_end_of_the_step_and_is_resumable(make, undisturbed):
    training = make("stopped")
    assert training.stop_at(3, signal.SIGTERM) == 4
    assert "checkpoint stored" in training.log()
    result = training.finish()
    assert training.weights(result) == undisturbed[2]
    assert training.logged_steps(result) == list(range(1, STEPS + 1))


def test_a_damaged_newest_checkpoint_is_passed_over(make, undisturbed):
    training = make("damaged")
    assert training.stop_at(7, signal.SIGKILL) == -signal.SIGKILL
    checkpoints = sorted((training.folder / "store").rglob("checkpoint-*/adapter_model.safetensors"))
    content = bytearray(checkpoints[-1].read_bytes())
    content[-1] ^= 1
    checkpoints[-1].chmod(0o644)
    checkpoints[-1].write_bytes(content)
    result = training.finish()
    assert "is damaged and passed over" in training.log()
    assert training.weights(result) == undisturbed[2]

"""Real, tiny trainings: the embedded model, sums as rows, a store and an MLflow database in a folder of their own."""

import hashlib
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from components.storage.store import fetch, open_store

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
    """One training in a folder of its own, run in a process of its own or (`here`) in this one."""

    folder: Path

    @property
    def store(self):
        return open_store(self.given["store"])

    @property
    def given(self):
        return json.loads((self.folder / "inputs.json").read_text())

    def start(self, **environment):
        (self.folder / "events.jsonl").write_text("")
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-c", PROGRAM, str(self.folder / "inputs.json")],
                env={
                    **os.environ,
                    "GRPO_EVENTS": str(self.folder / "events.jsonl"),
                    "OMP_NUM_THREADS": "1",
                    **environment,
                },
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def events(self, kind):
        lines = (self.folder / "events.jsonl").read_text().splitlines()
        return [event for event in map(json.loads, lines) if event["event"] == kind]

    def steps_done(self):
        return max((event["done"] for event in self.events("progress")), default=0)

    def wait_for_step(self, process, step):
        """Wait until a step is done; False when the process ended before."""
        while self.steps_done() < step:
            if process.poll() is not None:
                return False
            time.sleep(0.05)
        return True

    def stop_at(self, step, number):
        """Start, signal once a step is done; None when it ended before, else the exit code."""
        process = self.start()
        if not self.wait_for_step(process, step):
            return None
        process.send_signal(number)
        process.communicate(timeout=120)
        return process.returncode

    def finish(self):
        process = self.start()
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 0, (self.folder / "log").read_text()[-3000:]
        return json.loads(output.splitlines()[-1])

    def here(self, monkeypatch):
        """Train in this process (no second import of torch); returns what `finish` does."""
        from components.train_grpo.train import inputs_from_sections, train_grpo

        (self.folder / "events.jsonl").write_text("")
        monkeypatch.setenv("GRPO_EVENTS", str(self.folder / "events.jsonl"))
        inputs = inputs_from_sections(**self.given["sections"])
        trained = train_grpo(inputs, self.store, work=Path(self.given["work"]))
        return {"reference": str(trained.reference), "run_id": trained.run_id, "reused": trained.reused}

    def notes(self):
        return " | ".join(event["message"] for event in self.events("note"))

    def weights(self, result):
        folder = fetch(result["reference"])
        return hashlib.sha256((folder / "adapter_model.safetensors").read_bytes()).hexdigest()

    def record(self, result):
        return json.loads((fetch(result["reference"]) / "training.json").read_text())

    def logged(self, result, metric):
        """Values by step as MLflow has them, all that stand there."""
        from mlflow import MlflowClient

        found = {}
        for point in MlflowClient(self.given["tracking"]).get_metric_history(result["run_id"], metric):
            found.setdefault(point.step, []).append(point.value)
        return found

    def log(self):
        return (self.folder / "log").read_text()


@pytest.fixture(scope="session")
def make(tmp_path_factory):
    """Makes a training: a few rows, ten steps with a checkpoint every two; anything may be changed."""
    from components.contract import build_contract
    from components.contract.config import ContractConfig
    from components.prepare_dataset.config import DataConfig
    from components.prepare_dataset.prepare_dataset import prepare_dataset

    def training(name, *, rewards=None, stages=(), lora=True, store=None, seed=3, attempt="", **extra):
        folder = tmp_path_factory.mktemp(name)
        rows = folder / "rows.jsonl"
        pairs = [(a, b) for a in range(10, 30) for b in range(2, 12)]
        sums = [
            {"question": f"What is {a} plus {b}?", "answer": str(a + b), "how": f"{a} + {b} = {a + b}", "size": a + b}
            for a, b in pairs
        ]
        rows.write_text("".join(json.dumps(row) + "\n" for row in sums))
        place = store or str(folder / "store")
        opened = open_store(place)
        base = opened.put(MODEL, "models/tiny", provenance={})
        (folder / "prepare").mkdir()
        data = DataConfig.model_validate(
            {"train": str(rows), "max_prompt_tokens": 200, "columns": {"solution": "how", "keep": ["size"]}}
        )
        prepared = prepare_dataset(
            data,
            build_contract(ContractConfig()),
            opened.fetch(base, folder / "cache"),
            opened,
            work=folder / "prepare",
        )
        tracking = f"sqlite:///{folder / 'mlflow.db'}"
        settings = {
            "learning_rate": 1e-3, "num_generations": 4, "prompts_per_step": 2, "per_device_train_batch_size": 8,
            "max_completion_length": 24, "max_steps": STEPS, "save_steps": 2, "logging_steps": 1, "threads": 1,
            "validation_rows": 4, "optim": "adamw_torch", "sample_every": 3, "validate_every": 4, "use_cpu": True,
            **extra,
        }  # fmt: skip
        sections = {
            "run": json.dumps({"name": name, "seed": seed, "attempt": attempt}),
            "model": "{}",
            "base": str(base),
            "dataset": str(prepared.dataset),
            "contract": "{}",
            "rewards": json.dumps(rewards or {"incremental_format": 1.0, "correctness": 1.0}),
            "training": json.dumps(settings),
            "lora": json.dumps({"r": 4, "alpha": 8, "target_modules": "all-linear"}) if lora else "null",
            "stages": json.dumps(list(stages)),
            "tracking": json.dumps({"uri": tracking}),
            "code": "test",
        }
        given = {"sections": sections, "store": place, "work": str(folder / "work"), "tracking": tracking}
        (folder / "inputs.json").write_text(json.dumps(given))
        return Training(folder)

    return training

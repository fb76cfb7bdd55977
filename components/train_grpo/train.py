"""GRPO training, whole: take up or begin, run the stages, store the adapter. Called by component.py.

The training is content-addressed: `training/<hash of all that affects it>` in the store holds its checkpoints and, in
the end, its adapter. Started again it finds the adapter and is done, or goes on from the newest complete checkpoint, in
the same MLflow run. Refuses, before a model is loaded: a batch that does not fit G, a split too small for one step, a
supervised stage without worked answers, a second owner of the same training.
"""

import importlib
import json
import logging
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from components.contract import build_contract
from components.contract.config import ContractConfig
from components.errors import BadInputError, GateFailedError
from components.rewards.config import RewardsConfig
from components.sections import content_hash
from components.storage.lease import hold
from components.storage.references import Reference
from components.storage.stops import remembered_stop
from components.storage.store import ArtifactStore
from components.tracking.config import TrackingConfig
from components.tracking.runs import connect, experiment_id, find_run
from components.train_grpo.config import LoraConfig, PolicyConfig, StageConfig, TrainingConfig, stage_training
from components.train_grpo.record import read_record
from components.train_grpo.train_job import JOB_VARIABLE, run_in_job
from components.train_grpo.weights import check_scheduled

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainingInputs:
    """Everything a training depends on.

    Attributes:
        run_name: run.name.
        seed: run.seed.
        model: what training reads of the model section.
        base: the imported base model.
        dataset: the prepared train and validation splits.
        contract: the config's section.
        rewards: the config's section.
        training: the config's section.
        lora: the config's section; None trains all weights.
        stages: the config's section; empty means one GRPO stage.
        tracking: the config's section.
        code: fingerprint of the step's code.
        attempt: run.attempt; another one trains again beside the first.
    """

    run_name: str
    seed: int
    model: PolicyConfig
    base: Reference
    dataset: Reference
    contract: ContractConfig
    rewards: RewardsConfig
    training: TrainingConfig
    lora: LoraConfig | None
    stages: tuple[StageConfig, ...]
    tracking: TrackingConfig
    code: str
    attempt: str = ""

    def all_stages(self) -> tuple[StageConfig, ...]:
        """The stages, or the single GRPO stage that no `stages:` means."""
        return self.stages or (StageConfig(name="grpo"),)

    def key(self) -> str:
        """Hash of all that affects what is learned (and nothing else: not where metrics go, not the run's name)."""
        return content_hash(
            {
                "base": self.base.digest,
                "dataset": self.dataset.digest,
                "model": self.model.model_dump(mode="json"),
                "contract": build_contract(self.contract).hash,
                "rewards": reward_identity(self.rewards),
                "training": self.training.trl_values(),
                "prompts_per_step": self.training.prompts_per_step,
                "generation": self.training.generation,
                "threads": self.training.threads,
                "lora": self.lora.model_dump(mode="json") if self.lora else None,
                "stages": [stage.model_dump(mode="json") for stage in self.stages],
                "seed": self.seed,
                "code": self.code,
                "selection": self.training.selection(),
                "curriculum": self.training.curriculum,
                "weight_schedule": {
                    name: line.model_dump(mode="json") for name, line in self.training.weight_schedule.items()
                },
                "adaptive_weights": self.training.adaptive_weights
                and self.training.adaptive_weights.model_dump(mode="json"),
                "processes": self.training.processes,
                "attempt": self.attempt,
            }
        )


@dataclass(frozen=True)
class TrainedAdapter:
    """What training hands on.

    Attributes:
        reference: the adapter (or, for a full fine-tune, the model) in the store.
        run_id: the MLflow run.
        key: the training hash.
        reused: whether it was already there.
    """

    reference: Reference
    run_id: str
    key: str
    reused: bool


def train_grpo(inputs: TrainingInputs, store: ArtifactStore, *, work: Path) -> TrainedAdapter:
    """Train, or find the training already done.

    Args:
        inputs: everything the training depends on.
        store: the artifact store.
        work: local folder for checkpoints and downloads.

    Returns:
        The adapter's reference and the MLflow run.

    Raises:
        BadInputError: when the config and the data do not allow a training.
        GateFailedError: when a guard stopped it.
        ResumableError: when it was told to stop; started again it goes on.
    """
    key = inputs.key()
    prefix = f"training/{key[:32]}"
    done = store.find(f"{prefix}/adapter")
    if done is not None:
        record = read_record(store.fetch(done, work / "cache"))
        return TrainedAdapter(done, record.mlflow_run_id, key, reused=True)
    if inputs.training.threads:
        # Before torch is imported: its thread pools are sized once.
        os.environ["OMP_NUM_THREADS"] = str(inputs.training.threads)
    if inputs.model.backend == "unsloth":
        _import_unsloth()
    processes = training_processes(inputs.training)
    for stage in inputs.all_stages():
        training = stage_training(inputs.training, stage)
        training.batch_plan(processes)
        check_scheduled(training, list(inputs.rewards.rewards()))
        reward_weights(stage, {name: inputs.rewards.weight(name) for name in inputs.rewards.rewards()})
    # Guards may be loosened and the training go on from its checkpoint, so they are part of the marker and not the key.
    stop = f"{prefix}-{content_hash(inputs.training.guards.model_dump(mode='json'))[:12]}"
    again = "change training or its guards, or set run.attempt"
    with (
        hold(store, prefix, what=f"training of run {inputs.run_name}", wait_s=90),
        remembered_stop(store, stop, again=again),
    ):
        output = work / "training" / key[:32]
        output.mkdir(parents=True, exist_ok=True)
        if JOB_VARIABLE in os.environ and "WORLD_SIZE" not in os.environ:
            reference, run_id = run_in_job(inputs, store, prefix=prefix, key=key)
        elif processes > 1 and "WORLD_SIZE" not in os.environ:
            from components.train_grpo.launch import run_in_processes

            reference, run_id = run_in_processes(inputs, store, processes, prefix=prefix, key=key, output=output)
        else:
            from components.train_grpo.stages import run_stages

            reference, run_id = run_stages(inputs, store, prefix=prefix, key=key, output=output)
        shutil.rmtree(output, ignore_errors=True)
    return TrainedAdapter(reference, run_id, key, reused=False)


def train_or_say(
    inputs: TrainingInputs, store: ArtifactStore, *, work: Path, stop_fails: bool = True
) -> tuple[str, str]:
    """Train as `train_grpo` does; in a sweep a guard's stop is a result like another.

    Args:
        inputs: everything the training depends on.
        store: the artifact store.
        work: local folder for checkpoints and downloads.
        stop_fails: whether a guard's stop is an error.

    Returns:
        The adapter's reference, or why a guard ended the training, and the MLflow run's id.
    """
    try:
        trained = train_grpo(inputs, store, work=work)
    except GateFailedError as error:
        if stop_fails:
            raise
        log.warning("%s", error)
        client = connect(inputs.tracking)
        return str(error), find_run(client, experiment_id(client, inputs.tracking), inputs.key())
    return str(trained.reference), trained.run_id


def training_processes(training: TrainingConfig) -> int:
    """Training processes in all: what torchrun started, what the config says, or one a visible GPU.

    Args:
        training: the section.
    """
    if "WORLD_SIZE" in os.environ:
        return int(os.environ["WORLD_SIZE"])
    if training.processes is not None or training.value("use_cpu"):
        return training.processes or 1
    import torch

    return max(1, torch.cuda.device_count())


def _import_unsloth() -> None:
    """Import unsloth before transformers and trl, which it patches.

    Raises:
        BadInputError: when it is not installed.
    """
    try:
        importlib.import_module("unsloth")
    except ImportError as error:
        raise BadInputError(
            f"model.backend: unsloth is not installed in this environment ({error}); install unsloth in the train "
            "image, or write backend: transformers"
        ) from error


def reward_weights(stage: StageConfig, weights: Mapping[str, float]) -> list[float]:
    """The weights of a stage, in the order of the reward functions.

    Args:
        stage: the stage.
        weights: the run's weight by reward name.

    Raises:
        BadInputError: when the stage names a reward the run does not have.
    """
    if stage.rewards is None:
        return list(weights.values())
    unknown = [name for name in stage.rewards if name not in weights]
    if unknown:
        raise BadInputError(
            f"stages[{stage.name}].rewards: {unknown[0]!r} is not one of the run's rewards ({', '.join(weights)})"
        )
    return [float(stage.rewards.get(name, 0.0)) for name in weights]


def reward_identity(rewards: RewardsConfig) -> dict[str, Any]:
    """What of the rewards affects training: names, weights, options and code, not where a file lies.

    Args:
        rewards: the config section.
    """
    identity = {}
    for name, reward in rewards.rewards().items():
        described = reward.model_dump(mode="json", exclude={"stored", "use"})
        described["weight"] = rewards.weight(name)
        described["use"] = reward.source(name)
        if reward.stored is not None:
            described["use"] = [reward.stored.sha256, reward.source(name).rpartition(":")[2]]
        identity[name] = described
    return identity


def versions() -> dict[str, str]:
    """Versions of what trains, for the record."""
    from importlib.metadata import PackageNotFoundError, version

    found: dict[str, str] = {}
    for package in ("torch", "transformers", "trl", "peft", "datasets", "accelerate", "vllm", "mlflow", "kfp"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def settings_of(inputs: TrainingInputs) -> dict[str, Any]:
    """What the training was given, as nested plain data (the run's parameters)."""
    return {
        "run": {"name": inputs.run_name, "seed": inputs.seed, "attempt": inputs.attempt},
        "model": inputs.model.model_dump(mode="json"),
        "contract": inputs.contract.model_dump(mode="json"),
        "rewards": inputs.rewards.model_dump(mode="json"),
        "training": inputs.training.model_dump(mode="json", exclude_none=True) | inputs.training.trl_values(),
        "lora": inputs.lora.model_dump(mode="json") if inputs.lora else None,
        "stages": [stage.model_dump(mode="json") for stage in inputs.stages],
        "base": str(inputs.base),
        "dataset": str(inputs.dataset),
    }


def inputs_from_sections(
    *,
    run: str,
    model: str,
    base: str,
    dataset: str,
    contract: str,
    rewards: str,
    training: str,
    lora: str,
    stages: str,
    tracking: str,
    code: str,
) -> TrainingInputs:
    """The inputs as the component receives them.

    Args:
        run: the run section, JSON.
        model: the model section, JSON.
        base: reference of the base model.
        dataset: reference of the prepared dataset.
        contract: the contract section, JSON.
        rewards: the rewards section, JSON.
        training: the training section, JSON.
        lora: the lora section, JSON, or null.
        stages: the stages section, JSON list.
        tracking: the tracking section, JSON.
        code: fingerprint of the step's code.
    """
    named = json.loads(run)
    return TrainingInputs(
        run_name=named["name"],
        seed=int(named["seed"]),
        model=PolicyConfig.from_json(model),
        base=Reference.parse(base),
        dataset=Reference.parse(dataset),
        contract=ContractConfig.from_json(contract),
        rewards=RewardsConfig.from_json(rewards),
        training=TrainingConfig.from_json(training),
        lora=LoraConfig.from_json(lora) if json.loads(lora) is not None else None,
        stages=tuple(StageConfig.model_validate(stage) for stage in json.loads(stages)),
        tracking=TrackingConfig.from_json(tracking),
        code=code,
        attempt=str(named.get("attempt", "")),
    )

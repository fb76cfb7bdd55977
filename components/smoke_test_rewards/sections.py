"""The step on a run's sections and references, as `component.py` gets them: JSON in, the report's reference out."""

import json
import shutil
from pathlib import Path

from components.contract import build_contract
from components.contract.config import ContractConfig
from components.generation import Sampling
from components.rewards.config import RewardsConfig
from components.sections import content_hash
from components.smoke_test_rewards.config import SamplingConfig, SmokeTestConfig
from components.smoke_test_rewards.smoke_test_rewards import REPORT_FOLDER, require_passed, smoke_test_rewards
from components.storage.config import StoreConfig
from components.storage.stops import remembered_stop
from components.storage.store import fetch, open_store


def run_on_sections(
    *,
    dataset: str,
    base: str,
    contract: str,
    rewards: str,
    smoke_test: str,
    sampling: str,
    store: str,
    work: Path,
    page: Path,
    code: str = "",
    stages: str = "[]",
) -> str:
    """Test the rewards, write the page, and stop the run when they fail.

    Args:
        dataset: reference of the prepared dataset.
        base: reference of the base model; not fetched when `smoke_test.prompts` is 0.
        contract: the contract section, JSON.
        rewards: the rewards section, JSON.
        smoke_test: the smoke_test section, JSON.
        sampling: a `SamplingConfig`, JSON: how the training samples.
        store: the store section, JSON.
        work: folder for downloads and the report's files.
        page: where the HTML page goes, written whether the test passes or not.
        code: fingerprint of the step's code: a test that failed is tried again when it changed.
        stages: the stages section, JSON: weights of a stage's own are held to the traps too.

    Returns:
        Reference of the report.

    Raises:
        GateFailedError: when a failure is left that nobody waived.
        BadInputError: when a reward cannot be loaded.
    """
    config = SmokeTestConfig.from_json(smoke_test)
    store_config = StoreConfig.from_json(store)
    opened = open_store(store_config)
    tried = content_hash(dataset, base, contract, rewards, smoke_test, sampling, stages, code)
    with remembered_stop(opened, f"smoke_tests/{tried[:32]}", again="change the rewards or the smoke_test section"):
        report = smoke_test_rewards(
            fetch(dataset, work / "cache", config=store_config),
            fetch(base, work / "cache", config=store_config) if config.prompts else None,
            build_contract(ContractConfig.from_json(contract)),
            RewardsConfig.from_json(rewards),
            config,
            to_sampling(SamplingConfig.from_json(sampling), config),
            opened,
            work=work,
            stages=stage_weights(stages),
        )
        page.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(work / REPORT_FOLDER / "report.html", page)
        require_passed(report)
    return str(report.reference)


def stage_weights(stages: str) -> dict[str, dict[str, float]]:
    """Weights by reward name, by the name of each stage that has its own.

    Args:
        stages: the stages section, JSON.
    """
    return {stage["name"]: stage["rewards"] for stage in json.loads(stages) if stage.get("rewards") is not None}


def to_sampling(sampling: SamplingConfig, smoke_test: SmokeTestConfig) -> Sampling:
    """The training's sampling as generation takes it.

    Args:
        sampling: the training's own.
        smoke_test: gives the seed, and G where it overrides the training's.
    """
    return Sampling(
        max_new_tokens=sampling.max_new_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        n=smoke_test.group_size or sampling.group_size,
        seed=smoke_test.seed,
        top_k=sampling.top_k,
        repetition_penalty=sampling.repetition_penalty,
    )

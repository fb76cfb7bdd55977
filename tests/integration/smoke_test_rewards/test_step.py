"""The whole step on the quickstart's model and rows: artifact, page, and the stop."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from components.contract import build_contract
from components.contract.config import ContractConfig
from components.errors import GateFailedError
from components.rewards.config import RewardsConfig
from components.smoke_test_rewards.config import SamplingConfig, SmokeTestConfig
from components.smoke_test_rewards.sections import run_on_sections
from components.storage.config import StoreConfig
from components.storage.store import fetch, open_store

QUICKSTART = Path(__file__).parents[3] / "configs" / "quickstart"
CONTRACT = ContractConfig(system_prompt="Reply as {format}")
SAMPLING = SamplingConfig(temperature=1.0, top_p=1.0, top_k=0, repetition_penalty=1.0, max_new_tokens=40, group_size=4)


@pytest.fixture
def step(tmp_path):
    store = open_store(str(tmp_path / "store"))
    contract = build_contract(CONTRACT)
    lines = (QUICKSTART / "data" / "train.jsonl").read_text(encoding="utf-8").splitlines()[:64]
    rows = [json.loads(line) for line in lines]
    dataset = tmp_path / "dataset"
    dataset.mkdir()
    columns = {
        "prompt": [contract.messages(row["question"]) for row in rows],
        "question": [row["question"] for row in rows],
        "answer": [row["answer"] for row in rows],
    }
    pq.write_table(pa.table(columns), dataset / "train.parquet")
    reference = store.put(dataset, "datasets/test", provenance={})
    base = store.put_in_place(QUICKSTART / "model", "models/test", provenance={})

    def run(rewards=None, temperature=1.0, **smoke_test):
        sampling = SamplingConfig(
            temperature=temperature, top_p=1.0, top_k=0, repetition_penalty=1.0, max_new_tokens=40, group_size=4
        )
        return run_on_sections(
            dataset=str(reference),
            base=str(base),
            contract=CONTRACT.to_json(),
            rewards=RewardsConfig.model_validate(rewards or {}).to_json(),
            smoke_test=SmokeTestConfig.model_validate(smoke_test).to_json(),
            sampling=sampling.to_json(),
            store=StoreConfig(uri=store.uri).to_json(),
            work=tmp_path / "work",
            page=tmp_path / "page" / "report.html",
        )

    return run


@pytest.mark.slow
def test_the_quickstarts_rewards_pass_and_the_report_is_stored(step, tmp_path):
    reference = step(prompts=4, rows=2)
    stored = fetch(reference)
    report = json.loads((stored / "report.json").read_text(encoding="utf-8"))
    assert report["passed"]
    assert len(report["signal"]["groups"]) == 4
    assert all(len(group["completions"]) == 4 for group in report["signal"]["groups"])
    assert {reward["name"] for reward in report["signal"]["rewards"]} == set(RewardsConfig().rewards())
    assert (tmp_path / "page" / "report.html").read_text(encoding="utf-8") == (stored / "report.html").read_text(
        encoding="utf-8"
    )


@pytest.mark.slow
def test_a_base_model_that_always_writes_the_same_stops_the_run(step):
    with pytest.raises(GateFailedError, match="signal/constant_groups") as stopped:
        step({"correctness": 2.0, "strict_format": 1.0}, temperature=0.01, prompts=3, rows=2)
    assert "a higher training.temperature (it is 0.01" in str(stopped.value)


def test_a_failed_test_writes_its_page_before_it_stops_the_run(step, tmp_path):
    with pytest.raises(GateFailedError, match="total/gold_plus_one"):
        step({"strict_format": 1.0}, prompts=0, rows=2)
    assert "failed: nothing is trained" in (tmp_path / "page" / "report.html").read_text(encoding="utf-8")

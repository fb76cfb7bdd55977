"""The Kubeflow face of prepare_dataset: names and types, one call. graph.py sets image and resources."""

from typing import NamedTuple

from kfp import dsl


@dsl.component(base_image="python", install_kfp_package=False)
def prepare_dataset(
    data: str, contract: str, base: str, store: str, inputs: str, code: str, report: dsl.Output[dsl.Markdown]
) -> NamedTuple("PreparedDataset", [("dataset", str), ("holdout", str)]):  # type: ignore[valid-type]
    """Validate the rows, render the prompts and split them.

    Args:
        data: the data section, JSON.
        contract: the contract section, JSON.
        base: reference of the base model (its tokenizer counts prompt tokens).
        store: the store section, JSON.
        inputs: fingerprint of the local files the data section names; part of the cache key.
        code: fingerprint of the step's code; part of the cache key.
        report: what was found in the data.

    Returns:
        References of the dataset (train, validation) and of the holdout.
    """
    from typing import NamedTuple

    from components.steps import step, work_directory

    with step("prepare_dataset"):
        from pathlib import Path

        from components.contract import build_contract
        from components.contract.config import ContractConfig
        from components.prepare_dataset.config import DataConfig
        from components.prepare_dataset.prepare_dataset import prepare_dataset as run
        from components.storage.config import StoreConfig
        from components.storage.store import fetch, open_store

        work = work_directory("prepare_dataset")
        place = StoreConfig.from_json(store)
        prepared = run(
            DataConfig.from_json(data),
            build_contract(ContractConfig.from_json(contract)),
            fetch(base, work / "cache", config=place),
            open_store(place),
            work=work,
        )
        text = (fetch(prepared.dataset, work / "cache", config=place) / "report.md").read_text(encoding="utf-8")
        Path(report.path).write_text(text, encoding="utf-8")
    PreparedDataset = NamedTuple("PreparedDataset", [("dataset", str), ("holdout", str)])
    return PreparedDataset(str(prepared.dataset), str(prepared.holdout))

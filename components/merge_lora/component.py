"""The Kubeflow face of merge_lora: names and types, one call. graph.py sets image and resources."""

from kfp import dsl


@dsl.component(base_image="python", install_kfp_package=False)
def merge_lora(base: str, adapter: str, contract: str, merge: str, store: str, code: str) -> str:
    """Merge the adapter into the base model and verify the result.

    Args:
        base: reference of the base model the adapter was trained on.
        adapter: reference of the adapter.
        contract: the contract section, JSON (its system prompt becomes the template's default).
        merge: the merge section, JSON.
        store: the store section, JSON.
        code: fingerprint of the step's code; part of the cache key.

    Returns:
        Reference of the merged model.
    """
    from components.steps import step, work_directory

    with step("merge_lora"):
        from components.contract import build_contract
        from components.contract.config import ContractConfig
        from components.merge_lora.config import MergeConfig
        from components.merge_lora.merge import merge_lora as run
        from components.storage.config import StoreConfig
        from components.storage.references import Reference
        from components.storage.store import fetch, open_store

        work = work_directory("merge_lora")
        place = StoreConfig.from_json(store)
        merged = run(
            fetch(base, work / "cache", config=place),
            fetch(adapter, work / "cache", config=place),
            build_contract(ContractConfig.from_json(contract)),
            MergeConfig.from_json(merge),
            open_store(place),
            work=work,
            base_digest=Reference.parse(base).digest,
            adapter_digest=Reference.parse(adapter).digest,
        )
    return str(merged.reference)

"""The Kubeflow face of import_model: names and types, one call. graph.py sets image and resources."""

from kfp import dsl


@dsl.component(base_image="python", install_kfp_package=False)
def import_model(model: str, store: str, inputs: str, code: str) -> str:
    """Bring the base model into the store.

    Args:
        model: the model section, JSON.
        store: the store section, JSON.
        inputs: fingerprint of a local model folder or file; part of the cache key.
        code: fingerprint of the step's code; part of the cache key.

    Returns:
        Reference of the base model.
    """
    from components.steps import step, work_directory

    with step("import_model"):
        from components.import_model.config import ModelConfig
        from components.import_model.import_model import import_model as run
        from components.storage.config import StoreConfig
        from components.storage.store import open_store

        imported = run(
            ModelConfig.from_json(model), open_store(StoreConfig.from_json(store)), work=work_directory("import_model")
        )
    return str(imported.reference)

"""`grpo evaluate`: one model on one holdout, outside a run, with the evaluation step's own code.

Called by commands_serving.py. The result is stored where the step stores it, so a promotion finds it: that is how a
champion evaluated on an older holdout is made comparable with a newer version.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from components.errors import BadInputError, PipelineError
from components.storage.config import StoreConfig
from components.storage.references import Reference
from components.storage.store import default_cache, fetch, open_store
from pipeline.fingerprint import code_fingerprint
from pipeline.promoting.registered import RegisteredVersion, run_config

if TYPE_CHECKING:
    from mlflow import MlflowClient

    from components.evaluate_holdout.evaluate_holdout import Evaluation


@dataclass(frozen=True)
class HowEvaluated:
    """With what a model is evaluated.

    Attributes:
        config: sections contract, evaluation and rewards as plain data.
        holdout: the holdout.
    """

    config: dict[str, Any]
    holdout: Reference


def as_in_run(client: "MlflowClient", version: RegisteredVersion) -> HowEvaluated:
    """How a registered version was evaluated.

    Args:
        client: MLflow.
        version: the version.

    Raises:
        PipelineError: its run does not say.
    """
    from pipeline.promoting.registered import mlflow_errors

    with mlflow_errors():
        tags = client.get_run(version.run_id).data.tags
    if "grpo.holdout" not in tags:
        raise PipelineError(
            f"{version}: its run {version.run_id} does not name the holdout; give --config and --holdout"
        )
    return HowEvaluated(run_config(client, version), Reference.parse(tags["grpo.holdout"]))


def evaluate_model(folder: Path, digest: str, how: HowEvaluated, store: StoreConfig, work: Path) -> "Evaluation":
    """Evaluate a model directory.

    Args:
        folder: the verified directory.
        digest: of its manifest.
        how: contract, decoding and holdout.
        store: where the result goes.
        work: scratch folder.

    Raises:
        BadInputError: the sections are not valid.
    """
    from pydantic import ValidationError

    from components.contract import build_contract
    from components.contract.config import ContractConfig
    from components.evaluate_holdout.config import EvaluationConfig
    from components.evaluate_holdout.evaluate_holdout import evaluate_holdout

    try:
        contract = build_contract(ContractConfig.model_validate(how.config["contract"]))
        evaluation = EvaluationConfig.model_validate(how.config["evaluation"])
    except ValidationError as error:
        raise BadInputError(f"the run's config is not valid with this version of the package: {error}") from error
    return evaluate_holdout(
        folder,
        fetch(how.holdout, default_cache(), config=store),
        contract,
        evaluation,
        None,
        open_store(store),
        work=work,
        model_digest=digest,
        code=code_fingerprint("evaluate_holdout"),
    )

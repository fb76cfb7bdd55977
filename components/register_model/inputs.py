"""What register_model is given: references to what the earlier steps handed on, and the sections it reads."""

import json
from dataclasses import dataclass
from typing import Any, Self

from components.register_model.config import RegistryConfig
from components.storage.config import StoreConfig
from components.storage.references import Reference
from components.tracking.config import TrackingConfig


@dataclass(frozen=True)
class RegistrationInputs:
    """What the step is given.

    Attributes:
        run_id: the training's MLflow run.
        verdict: the verdict artifact.
        base_evaluation: the base model's evaluation.
        candidate_evaluation: the merged model's evaluation.
        base: the base model.
        merged: the merged model.
        adapter: the adapter.
        dataset: the prepared dataset.
        holdout: the holdout.
        smoke_test: the smoke test's report.
        config: the whole run config as plain data.
        registry: the config's section, its name filled in.
        tracking: the config's section.
        store: the config's section.
    """

    run_id: str
    verdict: Reference
    base_evaluation: Reference
    candidate_evaluation: Reference
    base: Reference
    merged: Reference
    adapter: Reference
    dataset: Reference
    holdout: Reference
    smoke_test: Reference
    config: dict[str, Any]
    registry: RegistryConfig
    tracking: TrackingConfig
    store: StoreConfig

    @classmethod
    def from_sections(
        cls, *, run_id: str, config: str, registry: str, tracking: str, store: str, **references: str
    ) -> Self:
        """The inputs as the component receives them.

        Args:
            run_id: the training's MLflow run.
            config: the whole run config, JSON.
            registry: the registry section, JSON.
            tracking: the tracking section, JSON.
            store: the store section, JSON.
            references: the artifacts' references by attribute name.
        """
        return cls(
            run_id=run_id,
            config=json.loads(config),
            registry=RegistryConfig.from_json(registry),
            tracking=TrackingConfig.from_json(tracking),
            store=StoreConfig.from_json(store),
            **{name: Reference.parse(text) for name, text in references.items()},
        )

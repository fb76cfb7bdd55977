"""The `registry` section: under which name a better model is registered, and what happens otherwise."""

from typing import Annotated

from pydantic import Field

from components.sections import Section


class RegistryConfig(Section):
    """How a candidate that passed its gates is registered in MLflow."""

    name: Annotated[str, Field(pattern=r"^[^/:]+$")] | None = None
    """Name of the registered model (no / or :); null takes run.name."""

    fail_run_on_gate: bool = True
    """Whether the run ends failed (exit code 3) when the verdict is not pass; false records it only."""

    register_inconclusive: bool = False
    """Whether an inconclusive candidate is registered too (tagged as such)."""

"""What a promotion asks of the place where a version is served; and the choice of one.

Called by promotion.py. Each target is idempotent: deploying what is there changes nothing, removing what is not there
neither, so that an interrupted promotion can simply be done or undone again.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from components.storage.config import StoreConfig
from components.storage.references import Reference
from pipeline.promoting.promotion_log import slug
from pipeline.promoting.targets.config import ServingConfig


@dataclass(frozen=True)
class Served:
    """A version to be served.

    Attributes:
        name: the registered model.
        version: its number.
        weights: the merged weights.
        dtype: precision it was evaluated in.
        store: S3 options to fetch the weights with.
    """

    name: str
    version: str
    weights: Reference
    dtype: str
    store: StoreConfig

    @property
    def model(self) -> str:
        """The name requests give as `model`."""
        return slug(self.name)


class Target(Protocol):
    """A place to serve from."""

    def changes(self, served: Served) -> str:
        """What deploying would change, for a person: a diff, or a command."""
        ...

    def serves(self, served: Served) -> bool:
        """Whether exactly this version is served already, and answers."""
        ...

    def deployed(self, name: str) -> str | None:
        """The version of a model that was deployed here last, ready or not; None for none."""
        ...

    def deploy(self, served: Served) -> None:
        """Begin to serve the version instead of whatever is served."""
        ...

    def wait(self, served: Served) -> str | None:
        """Wait until the version is ready.

        Returns:
            URL to ask it at (`/v1/...` follows), or None where there is nothing to ask.

        Raises:
            PipelineError: it did not become ready.
        """
        ...

    def remove(self, name: str) -> None:
        """Serve no version of a model any more."""
        ...


def open_target(config: ServingConfig, home: Path) -> Target:
    """The target a config names.

    Args:
        config: the serving config.
        home: the state folder (.grpo), for the local target.
    """
    if config.target == "local":
        from pipeline.promoting.targets.local import LocalTarget

        return LocalTarget(config, home)
    if config.target == "gitops":
        from pipeline.promoting.targets.gitops import GitopsTarget

        return GitopsTarget(config)
    from pipeline.promoting.targets.kubernetes import KubernetesTarget

    return KubernetesTarget(config)

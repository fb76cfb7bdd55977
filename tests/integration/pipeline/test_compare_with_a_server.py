"""`grpo runs`, `compare`, `show` and `reproduce` against a real MLflow server, and how long fifty runs take."""

import contextlib
import io
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from servers import mlflow_server
from tracked import make_config, make_run, make_tracking

from components.tracking.config import TrackingConfig
from pipeline.comparing.compare import compare_runs
from pipeline.comparing.compare_display import make_console, print_comparison
from pipeline.comparing.compare_page import render_page
from pipeline.comparing.tracked_runs import RunReader

pytestmark = pytest.mark.slow

SECONDS = 3.0
"""How long a comparison of fifty runs may take beyond imports."""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with mlflow_server(tmp_path_factory.mktemp("server")) as uri:
        yield TrackingConfig(uri=uri)


def grpo(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, as a person runs it."""
    command = [sys.executable, "-m", "pipeline.cli", *arguments]
    environment = {**os.environ, "COLUMNS": "160", "PYTHONPATH": str(Path(__file__).parents[3])}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240, check=False
    )


def test_a_server_gives_what_a_file_gives(server, tmp_path):
    first = make_run(server, seed=1, right=0.5)
    second = make_run(server, seed=2, right=0.9, config=make_config("arithmetic", 2, learning_rate=0.001))
    where = ("--tracking-uri", server.uri)

    listed = grpo(tmp_path, "runs", *where)
    assert listed.returncode == 0, listed.stderr
    assert first[:8] in listed.stdout

    compared = grpo(tmp_path, "compare", "arithmetic", *where, "--html", "page.html")
    assert compared.returncode == 0, compared.stderr
    assert "run 2: difference to run 1 on the same rows, paired 95 % interval." in compared.stdout
    assert "training.learning_rate" in compared.stdout
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "runs disagree" in page
    assert "<svg" in page

    shown = grpo(tmp_path, "show", second[:6], *where)
    assert shown.returncode == 0, shown.stderr
    assert "It got [better]." in shown.stdout

    repeated = grpo(tmp_path, "reproduce", second, *where)
    assert repeated.returncode == 0, repeated.stderr
    assert (tmp_path / f"repeat-{second[:8]}" / "commands.sh").exists()

    missing = grpo(tmp_path, "compare", "nothing", *where)
    assert missing.returncode == 2
    assert "Traceback" not in missing.stderr


def test_fifty_runs_are_compared_within_three_seconds(tmp_path):
    tracking = make_tracking(tmp_path)
    make_run(tracking, "warm", rows=20)
    for seed in range(50):
        config = make_config("many", seed, learning_rate=0.0001 * (1 + seed % 4))
        make_run(tracking, "many", seed=seed, rows=200, steps=40, config=config, text="word " * 60)
    reader = RunReader(tracking)
    compare_runs(reader, reader.find("warm") * 2)  # imports
    reader = RunReader(tracking)

    # The processor's time, so that a busy machine does not fail it; nothing here waits for another.
    began, processor = time.perf_counter(), time.process_time()
    comparison = compare_runs(reader, reader.find("many"))
    with contextlib.redirect_stdout(io.StringIO()) as out:
        print_comparison(make_console(), comparison)
    took, took_processor = time.perf_counter() - began, time.process_time() - processor
    print(f"50 runs: {took:.2f} s, of these {took_processor:.2f} s on the processor")
    assert out.getvalue().count("many") == 50
    assert len(comparison.runs) == 50
    assert took_processor < SECONDS
    assert "Curves and samples of the first 7 runs" in render_page(comparison, reader)

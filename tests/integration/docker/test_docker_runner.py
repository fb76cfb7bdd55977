"""The pipeline with one container a step, against a real S3 store and a real MLflow server."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from containers import FAMILIES, ROOT, SECONDS, run

# The first test to ask for the images waits for them to be built.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

FEW_STEPS = {
    "training.max_steps": 12,
    "training.save_steps": 6,
    "training.sample_every": 6,
    "evaluation.limit": 120,
    # A few steps prove nothing: the gates here ask only that accuracy has not collapsed.
    "gates.min_format_compliance": "null",
    "gates.min_accuracy_gain": "null",
    "gates.max_truncation": "null",
    "gates.accuracy_margin": 0.5,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where the command is run; the cache of the module's runs."""
    return tmp_path_factory.mktemp("containers")


@pytest.fixture(scope="module")
def command(images, stack):
    def build(**changes):
        settings = {
            "store.uri": stack["GRPO_STORE"],
            "tracking.uri": stack["MLFLOW_TRACKING_URI"],
            **{f"resources.images.{family}": images[family] for family in FAMILIES},
            **FEW_STEPS,
            **changes,
        }
        options = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
        config = ROOT / "configs" / "quickstart.yaml"
        return [sys.executable, "-m", "pipeline.cli", "run", str(config), "--runner", "docker", *options]

    return build


@pytest.fixture(scope="module")
def environment(stack):
    return {**{name: value for name, value in os.environ.items() if not name.startswith("AWS_")}, **stack}


def newest_run(folder):
    runs = sorted((folder / ".grpo" / "runs").glob("*"))
    return runs[-1] if runs else None


def events(folder):
    run_folder = newest_run(folder)
    path = run_folder / "events.jsonl" if run_folder else None
    lines = path.read_text().splitlines(keepends=True) if path and path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]  # the last one may be half written


def log(folder):
    path = newest_run(folder) / "run.log"
    return path.read_text()[-4000:] if path.exists() else ""


def left_over():
    return run("docker", "ps", "--all", "--quiet", "--filter", "label=grpo.run").stdout.split()


def stop_while_training(process, folder):
    """SIGTERM to the command as soon as training has made a step; what it printed."""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and process.poll() is None:
        if any(event["step"] == "train_grpo" and event["event"] == "progress" for event in events(folder)):
            break
        time.sleep(0.3)
    process.send_signal(signal.SIGTERM)
    return process.communicate(timeout=180)[0]


def test_the_quickstart_in_containers_is_stopped_goes_on_and_its_version_downloads_verified_from_s3(
    folder, command, environment
):
    seen = subprocess.Popen(
        ["docker", "events", "--filter", "event=start", "--filter", "label=grpo.run", "--format", "{{json .Actor}}"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        began = time.monotonic()
        process = subprocess.Popen(
            command(), cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        output = stop_while_training(process, folder)
        assert process.returncode == 4, output + log(folder)
        assert "checkpoint" in output, output
        assert left_over() == []
        SECONDS["quickstart in containers, until it was stopped"] = time.monotonic() - began

        began = time.monotonic()
        done = subprocess.run(
            command(), cwd=folder, env=environment, capture_output=True, text=True, timeout=400, check=False
        )
        SECONDS["quickstart in containers, from there to its end"] = time.monotonic() - began
    finally:
        seen.terminate()
        started = [json.loads(line)["Attributes"] for line in seen.communicate()[0].splitlines()]
    assert done.returncode == 0, done.stdout + done.stderr + log(folder)
    assert "reused: import model, prepare dataset, smoke test rewards" in done.stdout

    assert sorted(attributes["grpo.step"] for attributes in started) == [
        "evaluate_holdout",
        "evaluate_holdout",
        "import_model",
        "judge_candidate",
        "merge_lora",
        "prepare_dataset",
        "register_model",
        "smoke_test_rewards",
        "train_grpo",
        "train_grpo",
    ]
    image_of = {attributes["grpo.step"]: attributes["image"] for attributes in started}
    assert image_of["import_model"] == image_of["train_grpo"] == "grpo-test/train:ci"
    assert image_of["prepare_dataset"] == "grpo-test/data:ci"
    assert image_of["merge_lora"] == "grpo-test/merge:ci"
    assert image_of["evaluate_holdout"] == image_of["judge_candidate"] == "grpo-test/evaluate:ci"
    assert image_of["register_model"] == "grpo-test/registry:ci"
    assert left_over() == []
    assert not (folder / ".grpo" / "store").exists(), "nothing but S3 holds the artifacts"

    found = next(event["summary"] for event in events(folder) if event["event"] == "summary")
    assert found["version"] == "quickstart/1"
    verify_registered_version(folder, environment)


def verify_registered_version(folder, environment):
    """Ask the registry for the version, download what it names from S3, verify every byte, load it, in a fresh process
    that knows nothing of the run."""
    program = """
import sys
from pathlib import Path
from mlflow import MlflowClient
from components.storage.references import Reference
from components.storage.store import fetch, open_store

client = MlflowClient()
version = client.get_model_version("quickstart", "1")
assert version.source.startswith("s3://artifacts/"), version.source
reference = f"{version.source}@sha256:{version.tags['weights.manifest_sha256']}"
local = fetch(reference, Path(sys.argv[1]))
store = open_store(reference.rpartition("@")[0].rpartition("/")[0])
store.verify(Reference.parse(reference))
from transformers import AutoModelForCausalLM, AutoTokenizer
AutoTokenizer.from_pretrained(local)
AutoModelForCausalLM.from_pretrained(local)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder / "downloaded")],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert list((folder / "downloaded").rglob("*.safetensors"))


@pytest.mark.parametrize("status", [0, 3])
def test_the_status_of_a_container_that_ends_at_once_is_never_lost(daemon, base_image, status, capsys):
    import docker
    from pipeline.docker_runner import run_container

    client = docker.from_env()
    found = [run_container(client, base_image, ["sh", "-c", f"exit {status}"], {}) for _ in range(8)]
    client.close()
    assert found == [status] * 8


def test_an_image_that_is_not_there_is_refused_before_anything_runs(folder, command, environment):
    settings = {"resources.images.merge": "grpo-test/none:ci"}
    before = sorted(Path(folder).rglob("runs/*"))
    done = subprocess.run(
        command(**settings), cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 2
    assert "resources.images.merge: grpo-test/none:ci is not on this machine; build it (`make images`)" in done.stderr
    assert sorted(Path(folder).rglob("runs/*")) == before

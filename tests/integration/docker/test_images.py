"""What every image is: of its family, for no root user, for a read-only root file system, without what built it."""

import json
import subprocess
import time

import pytest
from containers import FAMILIES, SECONDS, run

# The first test to ask for the images waits for them to be built.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

HARDENED = [
    "--rm",
    "--read-only",
    "--cap-drop=ALL",
    "--security-opt=no-new-privileges",
    "--tmpfs=/tmp:rw,mode=1777",
    "--volume=/work",
    "--volume=/cache",
]
OWN_IMPORTS = {
    "data": "components.prepare_dataset.prepare_dataset, datasets, math_verify",
    "train": "components.train_grpo.train, components.import_model.import_model, trl, peft, gguf, mlflow",
    "merge": "components.merge_lora.merge, peft, torch",
    "evaluate": "components.evaluate_holdout.evaluate_holdout, components.judge_candidate.judge_candidate, "
    "components.smoke_test_rewards.smoke_test_rewards, torch, scipy",
    "registry": "components.register_model.register_model, components.register_model.report, mlflow, pandas",
}


def hardened(image, *command, user=None):
    """What a command prints in a hardened container."""
    asked = ["--user", user] if user else []
    done = run("docker", "run", *HARDENED, *asked, image, *command)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize("family", FAMILIES)
def test_an_image_runs_hardened_and_imports_what_its_steps_import(images, family):
    program = f"import {OWN_IMPORTS[family]}; import kfp.dsl.executor_main, os; print(os.getuid())"
    assert hardened(images[family], "python3", "-c", program).split() == ["10001"]


@pytest.mark.parametrize("user", [None, "4711:4711"], ids=["its own user", "any user"])
@pytest.mark.parametrize("family", FAMILIES)
def test_an_image_writes_to_its_three_folders_and_nowhere_else(images, family, user):
    program = (
        "id -u; for folder in /work /cache /tmp; do touch $folder/x && echo $folder; done; "
        "touch /x /opt/venv/x /etc/x 2>/dev/null || true; ls /x /opt/venv/x /etc/x 2>/dev/null; true"
    )
    printed = hardened(images[family], "sh", "-c", program, user=user)
    assert printed.split() == ["4711" if user else "10001", "/work", "/cache", "/tmp"]


@pytest.mark.parametrize("family", [*FAMILIES, "mlflow"])
def test_an_image_holds_no_compiler_no_installer_and_no_secret(images, family):
    looked = run(
        "docker",
        "run",
        "--rm",
        images[family],
        "sh",
        "-c",
        "for p in cc gcc g++ clang ld as make uv pip git; do command -v $p; done; ls -A /run/secrets 2>/dev/null; "
        "find /opt/tools /opt/dist /src /dist /var/cache/uv -mindepth 1 2>/dev/null; true",
    )
    assert looked.returncode == 0, looked.stderr
    assert looked.stdout.split() == []
    facts = json.loads(run("docker", "image", "inspect", images[family]).stdout)[0]
    assert not [entry for entry in facts["Config"]["Env"] if "KEY" in entry or "SECRET" in entry or "CERT" in entry]


@pytest.mark.parametrize("family", [*FAMILIES, "mlflow"])
def test_an_image_says_what_it_is(images, family):
    facts = json.loads(run("docker", "image", "inspect", images[family]).stdout)[0]
    labels = facts["Config"]["Labels"]
    assert labels["org.opencontainers.image.version"] == "ci"
    assert labels["org.opencontainers.image.revision"] == run("git", "rev-parse", "HEAD").stdout.strip()
    assert (labels["grpo.family"], labels["grpo.flavour"]) == (family, "cpu")
    assert facts["Config"]["User"] == "10001:10001"
    assert not facts["Config"]["Entrypoint"], "docker would put KFP's command behind it"


def test_images_share_the_layers_of_torch_and_below(images):
    layers = {
        family: json.loads(run("docker", "image", "inspect", images[family]).stdout)[0]["RootFS"]["Layers"]
        for family in ("train", "merge", "evaluate")
    }
    shared = set(layers["train"]) & set(layers["merge"]) & set(layers["evaluate"])
    sizes = {family: len(own) for family, own in layers.items()}
    assert all(len(shared) >= size - 3 for size in sizes.values()), (len(shared), sizes)


def test_the_mlflow_server_becomes_healthy_hardened(images):
    began = time.monotonic()
    command = ["mlflow", "server", "--backend-store-uri=sqlite:////work/mlflow.db", "--workers=1"]
    started = run("docker", "run", "--detach", *HARDENED, images["mlflow"], *command)
    assert started.returncode == 0, started.stderr
    name = started.stdout.strip()
    try:
        state = ""
        while state != "healthy" and time.monotonic() - began < 150:
            time.sleep(1)
            state = run("docker", "inspect", "--format", "{{.State.Health.Status}}", name).stdout.strip()
        assert state == "healthy", run("docker", "logs", name).stderr[-2000:]
    finally:
        subprocess.run(["docker", "rm", "--force", "--volumes", name], capture_output=True, check=True)
    SECONDS["mlflow image healthy"] = time.monotonic() - began

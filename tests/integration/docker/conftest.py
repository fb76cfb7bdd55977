"""A docker daemon, all images, an S3 store and an MLflow server, for tests that run steps in containers.

The daemon is started where none runs; where none can run, these tests are skipped and say why. The base image is the
one that GRPO_TEST_BASE_IMAGE names, else one made by debootstrap, kept for the next time with docker's layers. What
took how long is printed at the end of the session.
"""

import os
import shutil
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from containers import BASE, FAMILIES, PREFIX, SECONDS, VERSION, run
from servers import DockerDaemon, DockerUnavailableError


@pytest.fixture(scope="session")
def daemon(tmp_path_factory):
    server = DockerDaemon(tmp_path_factory.mktemp("dockerd"))
    try:
        server.start()
    except DockerUnavailableError as reason:
        pytest.skip(f"containers cannot be tested here: {reason}")
    yield server
    server.stop()


@pytest.fixture(scope="session")
def base_image(daemon):
    named = os.environ.get("GRPO_TEST_BASE_IMAGE")
    if named:
        return named
    if run("docker", "image", "inspect", BASE).returncode == 0:
        return BASE
    if shutil.which("debootstrap") is None or os.geteuid() != 0:
        pytest.skip("containers cannot be tested here: no base image, and debootstrap (as root) is needed to make one")
    began = time.monotonic()
    made = run("docker/debian-base.sh", BASE)
    assert made.returncode == 0, made.stderr
    SECONDS["base image"] = time.monotonic() - began
    return BASE


@pytest.fixture(scope="session")
def images(base_image):
    """The tag of each image by family, all built from the working tree."""
    began = time.monotonic()
    # A machine whose package index sits behind a proxy with certificates of its own says so for pip.
    bundle = os.environ.get("CA_BUNDLE") or os.environ.get("PIP_CERT")
    environment = {
        **os.environ,
        "BASE_IMAGE": base_image,
        "IMAGE_PREFIX": PREFIX,
        "VERSION": VERSION,
        **({"CA_BUNDLE": bundle} if bundle else {}),
    }
    built = run("docker/build.sh", env=environment)
    assert built.returncode == 0, built.stdout[-3000:] + built.stderr[-6000:]
    SECONDS["images"] = time.monotonic() - began
    sys.stderr.write("\n" + "\n".join(line for line in built.stdout.splitlines() if line.endswith(" MB")) + "\n")
    return {family: f"{PREFIX}/{family}:{VERSION}" for family in (*FAMILIES, "mlflow")}


@pytest.fixture(scope="session")
def stack(tmp_path_factory, daemon):
    """The environment of a running S3 store and MLflow server."""
    from pipeline.stack import down, up

    home = tmp_path_factory.mktemp("stack")
    began = time.monotonic()
    started = up(home)
    SECONDS["stack"] = time.monotonic() - began
    yield started.environment()
    down(home)


def pytest_terminal_summary(terminalreporter):
    for what, seconds in SECONDS.items():
        terminalreporter.write_line(f"{what}: {seconds:.0f} s")

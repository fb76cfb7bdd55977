"""`make stack`: both servers come up with credentials of their own, keep their data, and are gone when told."""

import os
import stat
import subprocess
import sys
import urllib.request
from pathlib import Path

import boto3
import pytest

from pipeline.stack import Stack, _is_running, _stop, read

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[3]


def stack(*arguments, home):
    return subprocess.run(
        [sys.executable, "-m", "pipeline.stack", *arguments, "--home", str(home)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


def client(environment):
    return boto3.client(
        "s3",
        endpoint_url=environment["AWS_ENDPOINT_URL"],
        aws_access_key_id=environment["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=environment["AWS_SECRET_ACCESS_KEY"],
        region_name="us-east-1",
    )


def test_a_stack_comes_up_once_keeps_its_data_and_goes_down(tmp_path):
    home = tmp_path / "stack"
    try:
        first = stack("up", home=home)
        assert first.returncode == 0, first.stderr
        environment = dict(line.removeprefix("export ").split("=", 1) for line in first.stdout.splitlines())
        assert environment["AWS_ENDPOINT_URL"].startswith("http://127.0.0.1:")
        with urllib.request.urlopen(environment["MLFLOW_TRACKING_URI"] + "/health") as answer:
            assert answer.status == 200
        client(environment).put_object(Bucket="artifacts", Key="kept", Body=b"kept")
        for name in ("env", "stack.json"):
            assert stat.S_IMODE((home / name).stat().st_mode) == 0o600
        assert (home / "env").read_text() == first.stdout

        pids = read(home).processes
        again = stack("up", home=home)
        assert again.stdout == first.stdout
        assert read(home).processes == pids

        # A server that died is started again, the other one stays.
        _stop(*pids["s3"])
        assert stack("up", home=home).returncode == 0
        assert read(home).processes["mlflow"] == pids["mlflow"]
        assert client(environment).get_object(Bucket="artifacts", Key="kept")["Body"].read() == b"kept"
    finally:
        running = read(home)
        down = stack("down", home=home)
    assert down.stdout == "stopped mlflow and s3\n"
    assert not any(_is_running(running, name) for name in ("s3", "mlflow"))
    assert stack("down", home=home).stdout == "nothing runs\n"


def test_a_process_that_took_over_a_number_is_not_taken_for_the_server():
    assert not _is_running(Stack("", "", {}, {"s3": (os.getpid(), 12.0)}), "s3")


def test_the_environment_of_no_stack_is_refused_with_the_mend(tmp_path):
    done = stack("env", home=tmp_path)
    assert done.returncode == 2
    assert "make stack" in done.stderr

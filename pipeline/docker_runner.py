"""`grpo run --runner docker`: every step in a container of its own, from its family's image.

Two halves. `check_docker` and `container_arguments` are called by the command before anything starts (runners.py); the
rest runs inside local_process.py, where KFP's DockerRunner starts the containers. The steps share the S3 store and the
MLflow server, and with this machine only what KFP's local runner needs: the folder of the steps' small outputs and the
events file. Containers run as no root user, with a read-only root file system, no capability and no new privileges.

KFP's own way of running a container (auto-remove) loses the exit status of one that dies at once and takes it for a
success, and pulls images nobody named; `run_container` takes its place. Limits: Linux, a local docker daemon, and
services that the host's network reaches (`network_mode: host`). Credentials are resolved once, at the start, and lie in
the containers' environment, where whoever may speak to the daemon can read them.
"""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from components.errors import BadInputError, ExitCode, PipelineError
from components.steps import EVENTS_VARIABLE
from pipeline.config import RunConfig
from pipeline.fingerprint import COMPONENTS, file_hash

RUN_LABEL = "grpo.run"
STEP_LABEL = "grpo.step"
CODE_LABEL = "grpo.code"
IMAGE_FAMILIES = ("data", "train", "merge", "evaluate", "registry")
IMAGE_USER = 10001
"""The images' own user and group."""

PASSED_ON = ("HF_TOKEN", "HF_ENDPOINT", "WANDB_API_KEY", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
"""Variables of this process that steps get, besides MLFLOW_* and AWS_*."""

CA_VARIABLES = ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE", "MLFLOW_TRACKING_SERVER_CERT_PATH")
"""Variables that name a file of certificates; the file is mounted at its own path."""

GONE = (404, 409)
"""Answers of the daemon about a container that is gone, going, or not started."""

STOP = """
import os, signal
for name in os.listdir("/proc"):
    if name.isdigit() and int(name) != os.getpid():
        try:
            if os.getpgid(int(name)) == 1:
                os.kill(int(name), signal.SIGTERM)
        except (ProcessLookupError, PermissionError):
            pass
"""
"""Run in a container: SIGTERM to the process group of its first process (`kill -1` would mean every process)."""

_stopping: list[str] = []
"""Runs of this process that were told to stop."""


def check_docker(config: RunConfig) -> None:
    """Refuse a run that containers could not do.

    Args:
        config: the run config.

    Raises:
        BadInputError: naming the field or the program, and the mend.
    """
    if not config.store.uri.startswith("s3://"):
        raise BadInputError(
            f"store.uri: {config.store.uri} is a folder of this machine, and steps in containers share an S3 store; "
            "write s3://bucket/prefix (`make stack` starts one here)"
        )
    if not config.tracking.uri.startswith(("http://", "https://")):
        raise BadInputError(
            f"tracking.uri: {config.tracking.uri} is a file of this machine, and steps in containers share an MLflow "
            "server; write http(s)://host (`make stack` starts one here)"
        )
    container_environment(config)
    client = docker_client()
    try:
        labels = {
            name: image.labels for image in client.images.list() for name in (*image.tags, *image.attrs["RepoDigests"])
        }
    finally:
        client.close()
    code = code_hash(COMPONENTS)
    for family, image in config.resources.images.model_dump().items():
        if not isinstance(image, str) or family not in IMAGE_FAMILIES:
            continue
        if image not in labels:
            raise BadInputError(
                f"resources.images.{family}: {image} is not on this machine; build it (`make images`), pull it, or "
                "name another"
            )
        if labels[image].get(CODE_LABEL, code) != code:
            # The steps' cache keys are taken from the code here: other code there would be cached under its name.
            raise BadInputError(
                f"resources.images.{family}: {image} was built from other code than this; build it again "
                "(`make images`), or run the version it was built from"
            )


def code_hash(components: Path) -> str:
    """Hash of the steps' code, as docker/build.sh computes it for the images' label.

    Args:
        components: the folder.

    Returns:
        64 hex digits.
    """
    suffixes = (".py", ".json", ".j2", ".html")
    files = {
        f"{components.name}/{path.relative_to(components).as_posix()}": path
        for path in components.rglob("*")
        if path.is_file() and path.suffix in suffixes
    }
    lines = "".join(f"{file_hash(files[name])}  {name}\n" for name in sorted(files))
    return hashlib.sha256(lines.encode()).hexdigest()


def docker_client() -> Any:
    """A client of the local daemon that answered.

    Raises:
        BadInputError: when there is no daemon, or the package is missing.
    """
    try:
        import docker
    except ImportError:
        raise BadInputError("--runner docker needs the Python package docker; pip install docker") from None
    try:
        client = docker.from_env()
        client.ping()
    except docker.errors.DockerException as error:
        raise BadInputError(
            f"--runner docker: the docker daemon does not answer ({error}); start it, or let your user speak to it "
            "(group docker, DOCKER_HOST)"
        ) from None
    return client


def container_environment(config: RunConfig) -> dict[str, str]:
    """What a step's container is told: endpoints and credentials, nothing else of this process's environment.

    Args:
        config: the run config.

    Raises:
        BadInputError: when there are no credentials for the store.
    """
    found = {
        name: value
        for name, value in os.environ.items()
        if name in PASSED_ON or name in CA_VARIABLES or name.startswith(("MLFLOW_", "AWS_"))
    }
    for name in ("AWS_PROFILE", "AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE", "AWS_WEB_IDENTITY_TOKEN_FILE"):
        found.pop(name, None)  # files of this machine: what they say is resolved below
    import boto3
    from botocore.exceptions import BotoCoreError

    try:
        session = boto3.Session()
        credentials = session.get_credentials()
        frozen = credentials.get_frozen_credentials() if credentials else None
    except BotoCoreError as error:
        raise BadInputError(f"the credentials of the S3 store cannot be read: {error}") from error
    if frozen is None or not frozen.access_key:
        raise BadInputError("no credentials for the S3 store; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
    found |= {"AWS_ACCESS_KEY_ID": frozen.access_key, "AWS_SECRET_ACCESS_KEY": frozen.secret_key}
    if frozen.token:
        found["AWS_SESSION_TOKEN"] = frozen.token
    if session.region_name:
        found.setdefault("AWS_DEFAULT_REGION", session.region_name)
    return {**found, **config.store.environment(), "NO_COLOR": "1"}


def container_user() -> tuple[int, int]:
    """Uid and gid of the steps: those of whoever started the run, the images' own for root."""
    return (os.getuid(), os.getgid()) if os.getuid() else (IMAGE_USER, IMAGE_USER)


def container_arguments(folder: Path, environment: Mapping[str, str]) -> dict[str, Any]:
    """How every step's container is run, as `containers.create` of the docker SDK takes it.

    Args:
        folder: the run folder; its `steps` and `events.jsonl` are made writable for the steps.
        environment: from `container_environment`.
    """
    from docker.types import Mount

    user, group = container_user()
    events = folder / "events.jsonl"
    for path in (folder / "steps", folder / "workspace"):
        path.mkdir(exist_ok=True)
        os.chown(path, user, group)
    os.chown(events, user, group)
    certificates = {environment[name] for name in CA_VARIABLES if environment.get(name)}
    return {
        "environment": {**environment, EVENTS_VARIABLE: str(events)},
        "user": f"{user}:{group}",
        "network_mode": "host",
        "read_only": True,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges"],
        "tmpfs": {"/tmp": "rw,exec,nosuid,nodev,mode=1777"},  # noqa: S108 (a mount point in the container)
        "mounts": [
            Mount(str(events), str(events), type="bind"),
            # Volumes of the container alone: on disk, since a model may not fit into memory twice, and gone with it.
            Mount("/work", None, type="volume"),
            Mount("/cache", None, type="volume"),
            *(Mount(path, path, type="bind", read_only=True) for path in sorted(certificates) if Path(path).is_file()),
        ],
        "shm_size": "1g",
        "labels": {RUN_LABEL: folder.name},
    }


def make_runner(config: RunConfig, folder: Path) -> Any:
    """KFP's DockerRunner for a run, with our way of running a container.

    Args:
        config: the run config.
        folder: the run folder.
    """
    from kfp import local
    from kfp.local import docker_task_handler

    def run(client: Any, image: str, command: list[str], volumes: dict[str, Any], **arguments: Any) -> int:
        step = _step_of(command)
        arguments["labels"] = {**arguments["labels"], STEP_LABEL: step}
        wants = getattr(config.resources, step, None)
        if wants is not None and wants.gpus and "nvidia" in client.info().get("Runtimes", {}):
            from docker.types import DeviceRequest

            arguments["device_requests"] = [DeviceRequest(count=wants.gpus, capabilities=[["gpu"]])]
        return run_container(client, image, command, volumes, **arguments)

    docker_task_handler.run_docker_container = run
    return local.DockerRunner(**container_arguments(folder, container_environment(config)))


def run_container(client: Any, image: str, command: list[str], volumes: dict[str, Any], **arguments: Any) -> int:
    """Run a container to its end, print what it prints, remove it.

    Args:
        client: of the docker SDK.
        image: must be there already.
        command: what to run.
        volumes: as the SDK takes them.
        arguments: further ones of `containers.create`.

    Returns:
        Its exit status, whenever it ended.
    """
    import docker

    if _stopping:
        return int(ExitCode.RESUMABLE)
    try:
        container = client.containers.create(image=image, command=command, volumes=volumes, **arguments)
    except docker.errors.APIError as error:
        print(f"the container of {image} could not be made: {error.explanation}")
        return 1
    try:
        container.start()
        for line in container.logs(stream=True, follow=True):
            print(line.decode(errors="replace"), end="")
        return int(container.wait()["StatusCode"])
    except docker.errors.APIError as error:
        # Removed by somebody else while it ran: it did not finish, whatever it had written.
        print(f"the container of {image} failed: {error.explanation}")
        return 1
    finally:
        try:
            container.remove(force=True, v=True)
        except docker.errors.APIError as error:
            if error.status_code not in GONE:
                raise


def stop_containers(folder: Path) -> None:
    """Ask the steps of a run to save and stop, and start no further one.

    The signal goes to the process group of a container's first process, as it does in a run without containers: to a
    shell, which neither dies of it nor passes it on, and to the step. What the step started in groups of its own, such
    as the workers that guard the rewards, goes on until the step ends it.

    Args:
        folder: the run folder.
    """
    import docker

    _stopping.append(folder.name)
    for container in _containers(folder):
        try:
            container.exec_run(["python3", "-c", STOP], detach=True)
        except docker.errors.APIError as error:
            if error.status_code not in GONE:
                raise


def remove_containers(folder: Path) -> None:
    """Remove what is left of a run.

    Args:
        folder: the run folder.
    """
    import docker

    for container in _containers(folder):
        try:
            container.remove(force=True, v=True)
        except docker.errors.APIError as error:
            if error.status_code not in GONE:
                raise PipelineError(f"container {container.short_id} could not be removed: {error}") from error


def _containers(folder: Path) -> list[Any]:
    import docker

    client = docker.from_env()
    found: list[Any] = client.containers.list(all=True, filters={"label": f"{RUN_LABEL}={folder.name}"})
    return found


def _step_of(command: list[str]) -> str:
    """The step a KFP command runs, for the label."""
    marker = "--function_to_execute"
    return command[command.index(marker) + 1] if marker in command else "unknown"

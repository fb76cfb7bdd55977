"""The local target: one server process on this machine for each registered model.

Opened by `open_target`. State lives below `<home>/serving/<model>/`: what is served (state.json), the process (pid),
its output (server.log). The process writes its own number before it becomes the server, so that one whose starter was
killed is found again. The server is stopped before the next one starts on the same port: some seconds without answers.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

from components.errors import BadInputError, PipelineError
from components.storage.store import default_cache, fetch
from pipeline.promoting.endpoint import healthy
from pipeline.promoting.promotion_log import slug
from pipeline.promoting.serving import choose_server, server_command, server_log_tail
from pipeline.promoting.targets.config import ServingConfig
from pipeline.promoting.targets.target import Served

MARK = "GRPO_SERVING"
"""Environment variable of a server process: its state folder. Tells it from a stranger with the same number."""

STOP_SECONDS = 15.0
"""How long a server may take to end before it is killed."""


class LocalTarget:
    """Servers on this machine."""

    def __init__(self, config: ServingConfig, home: Path) -> None:
        """Name the place.

        Args:
            config: the serving config.
            home: the state folder.
        """
        self._config = config
        self._home = home.absolute()

    def changes(self, served: Served) -> str:
        """See `Target.changes`."""
        state = self._state(served.name)
        now = f"version {state['version']}" if state else "nothing"
        engine = choose_server(self._config.engine)
        return (
            f"- {self._url()} serves {now}\n+ {self._url()} serves version {served.version} as {served.model!r} "
            f"({engine}, {self._config.dtype or served.dtype}) from {served.weights.uri}"
        )

    def serves(self, served: Served) -> bool:
        """See `Target.serves`."""
        state = self._state(served.name)
        wanted = self._wanted(served)
        return (
            state is not None
            and all(state.get(key) == value for key, value in wanted.items())
            and self._pid(served.name) is not None
            and healthy(self._url())
        )

    def deployed(self, name: str) -> str | None:
        """See `Target.deployed`."""
        state = self._state(name)
        return None if state is None else str(state["version"])

    def deploy(self, served: Served) -> None:
        """See `Target.deploy`; reads every byte of the weights first."""
        weights = fetch(served.weights, default_cache(), config=served.store)
        folder = self._folder(served.name)
        self._stop(served.name)
        self._require_free_port()
        command = server_command(
            weights,
            folder / "model",
            model=served.model,
            host=self._config.host,
            port=self._config.port,
            engine=self._config.engine,
            dtype=self._config.dtype or served.dtype,
        )
        (folder / "state.json").write_text(
            json.dumps(self._wanted(served) | {"engine": command.engine, "url": self._url(), "model": served.model}),
            encoding="utf-8",
        )
        with (folder / "server.log").open("wb") as log:
            subprocess.Popen(  # noqa: S603
                ["/bin/sh", "-c", 'echo $$ > "$0" && exec "$@"', str(folder / "pid"), *command.arguments],
                cwd=command.folder,
                env={**os.environ, **command.environment, MARK: str(folder)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait(self, served: Served) -> str | None:
        """See `Target.wait`."""
        log = self._folder(served.name) / "server.log"
        deadline = time.monotonic() + self._config.ready_timeout_s
        begun = time.monotonic()
        while time.monotonic() < deadline:
            alive = self._pid(served.name) is not None
            if alive and healthy(self._url()):
                return self._config.endpoint or self._url()
            if not alive and time.monotonic() - begun > 2:
                raise PipelineError(f"the server of {served.name} ended: {server_log_tail(log)} (all of it: {log})")
            time.sleep(0.3)
        raise PipelineError(
            f"the server of {served.name} is not ready after {self._config.ready_timeout_s:.0f} s; its output: {log}"
        )

    def remove(self, name: str) -> None:
        """See `Target.remove`."""
        self._stop(name)
        shutil.rmtree(self._folder(name), ignore_errors=True)

    def _wanted(self, served: Served) -> dict[str, str | int]:
        return {
            "name": served.name,
            "version": served.version,
            "weights": str(served.weights),
            "host": self._config.host,
            "port": self._config.port,
            "dtype": self._config.dtype or served.dtype,
        }

    def _url(self) -> str:
        host = "127.0.0.1" if self._config.host in ("0.0.0.0", "::") else self._config.host  # noqa: S104
        return f"http://{host}:{self._config.port}"

    def _folder(self, name: str) -> Path:
        folder = self._home / "serving" / slug(name)
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _state(self, name: str) -> dict[str, str | int] | None:
        return read_state(self._home, name)

    def _pid(self, name: str) -> int | None:
        """The server's process, when it lives."""
        folder = self._home / "serving" / slug(name)
        try:
            pid = int((folder / "pid").read_text())
        except (OSError, ValueError):
            return None
        return pid if _is_server(pid, folder) else None

    def _stop(self, name: str) -> None:
        pid, folder = self._pid(name), self._home / "serving" / slug(name)
        if pid is not None:
            for number in (signal.SIGTERM, signal.SIGKILL):
                try:
                    os.killpg(pid, number)
                except (ProcessLookupError, PermissionError):
                    break
                deadline = time.monotonic() + STOP_SECONDS
                while not (gone := _is_gone(pid, folder)) and time.monotonic() < deadline:
                    _reap(pid)
                    time.sleep(0.05)
                if gone:
                    break
            else:
                raise PipelineError(f"the server of {name} (process {pid}) does not end; stop it, then run again")
        (folder / "pid").unlink(missing_ok=True)
        (folder / "state.json").unlink(missing_ok=True)

    def _require_free_port(self) -> None:
        with socket.socket() as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                trial.bind((self._config.host, self._config.port))
            except OSError as error:
                raise BadInputError(
                    f"port {self._config.port} of {self._config.host} is not to be had ({error.strerror}); give "
                    "another with --port"
                ) from error


def read_state(home: Path, name: str) -> dict[str, str | int] | None:
    """What the local target serves for a model, or None.

    Args:
        home: the state folder.
        name: the registered model.
    """
    try:
        content: dict[str, str | int] = json.loads(
            (home / "serving" / slug(name) / "state.json").read_text(encoding="utf-8")
        )
    except (OSError, ValueError):
        return None
    return content


def _is_server(pid: int, folder: Path) -> bool:
    """Whether a process lives and is the server of this folder."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, PermissionError):
        return False
    process = Path(f"/proc/{pid}")
    if not process.exists():
        return not Path("/proc/self").exists()  # no /proc here: the number has to do
    try:
        if (process / "stat").read_text().rpartition(")")[2].split()[0] == "Z":
            return False
        return f"{MARK}={folder}".encode() in (process / "environ").read_bytes().split(b"\0")
    except OSError:
        return False


def _is_gone(pid: int, folder: Path) -> bool:
    """Whether a server that was told to end has ended, its port free again.

    A process that is ending loses its environment first and its sockets later: without one it is not gone yet.
    """
    if _is_server(pid, folder):
        return False
    process = Path(f"/proc/{pid}")
    try:
        if (process / "stat").read_text().rpartition(")")[2].split()[0] in "ZX":
            return True
    except OSError:
        return True
    try:
        return bool((process / "environ").read_bytes())  # of another process, which got the number
    except PermissionError:
        return True
    except OSError:
        return False


def _reap(pid: int) -> None:
    """Collect a child that ended, where it is ours."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return

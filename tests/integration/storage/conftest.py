"""A real S3 server for the tests of this folder, and small helpers that make files and folders."""

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from servers import SeaweedServer

from components.storage.config import StoreConfig
from components.storage.s3 import S3Store


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedServer]:
    """One server for all tests that do not kill it."""
    server = SeaweedServer(tmp_path_factory.mktemp("seaweed"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def server(shared_server: SeaweedServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> SeaweedServer:
    """The shared server, its credentials in this test's environment, and a cache of this test's own."""
    _use(shared_server, monkeypatch, tmp_path)
    return shared_server


@pytest.fixture
def own_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[SeaweedServer]:
    """A server that the test may kill."""
    folder = tmp_path / "seaweed"
    folder.mkdir()
    found = SeaweedServer(folder)
    found.start()
    _use(found, monkeypatch, tmp_path)
    yield found
    found.stop()


def _use(server: SeaweedServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_CA_BUNDLE", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("GRPO_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def prefix(request: pytest.FixtureRequest) -> str:
    """A prefix of the bucket for this test alone."""
    return "t" + hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:12]


@pytest.fixture
def store(server: SeaweedServer, prefix: str) -> S3Store:
    """An empty store in the shared server."""
    return S3Store(StoreConfig(uri=f"s3://artifacts/{prefix}", part_size_mib=5))


@pytest.fixture
def make_folder(tmp_path: Path) -> Callable[..., Path]:
    """Makes a folder of files: name -> size in bytes, or text."""

    def make(name: str, **files: int | str) -> Path:
        folder = tmp_path / name
        for path, content in files.items():
            target = folder / path.replace("__", "/")
            target.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, str):
                target.write_text(content)
            else:
                write_noise(target, content)
        return folder

    return make


def write_noise(path: Path, size: int) -> None:
    """Fill a file with bytes that do not compress and are the same for the same name."""
    block = 1 << 20
    with path.open("wb") as file:
        for start in range(0, size, block):
            seed = hashlib.sha256(f"{path.name} {start}".encode()).digest()
            file.write((seed * (block // len(seed)))[: min(block, size - start)])

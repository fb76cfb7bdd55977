"""A model from a hub (a small HTTP server that speaks its protocol) and from a real S3 server."""

import hashlib
import http.server
import json
from collections.abc import Iterator
from pathlib import Path

import numpy
import pytest
from answering import answering
from huggingface_hub import constants
from safetensors.numpy import save_file
from servers import SeaweedServer

from components.errors import BadInputError, PipelineError
from components.import_model.config import ModelConfig
from components.import_model.import_model import import_model
from components.storage.config import StoreConfig
from components.storage.store import fetch, open_store

COMMITS = {"main": "a" * 40, "v1": "b" * 40}
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A model folder with things beside the model that must not come along."""
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    (folder / "README.md").write_text("---\nlicense: apache-2.0\n---\n")
    (folder / "pytorch_model.bin").write_bytes(b"the same weights as pickle")
    save_file({"a": numpy.zeros(2, numpy.float32)}, folder / "model.safetensors")
    return folder


# ---- hub


class _Hub:
    """What the server knows, and what it was asked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.commit = COMMITS["main"]
        self.asked: list[str] = []
        self.refuse: tuple[int, str] | None = None


def _handler(hub: _Hub) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def _answer(self, *, with_body: bool) -> None:
            hub.asked.append(f"{self.command} {self.path}")
            if hub.refuse is not None:
                return self._send(hub.refuse[0], b"{}", {"X-Error-Code": hub.refuse[1]}, with_body)
            parts = self.path.partition("?")[0].strip("/").split("/")
            if parts[:4] == ["api", "models", "org", "tiny"]:
                revision = parts[5] if len(parts) > 5 else "main"
                commit = COMMITS.get(revision, revision) if revision != "main" else hub.commit
                if commit not in (*COMMITS.values(), hub.commit):
                    return self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound"}, with_body)
                files = sorted(path.name for path in hub.folder.iterdir())
                if len(parts) > 4 and parts[4] == "tree":
                    listed = [self._entry(name) for name in files]
                    return self._send(200, json.dumps(listed).encode(), {}, with_body)
                info = {"id": "org/tiny", "sha": commit, "siblings": [{"rfilename": name} for name in files]}
                return self._send(200, json.dumps(info).encode(), {}, with_body)
            if parts[:3] == ["org", "tiny", "resolve"] and (hub.folder / parts[4]).is_file():
                content = (hub.folder / parts[4]).read_bytes()
                etag = hashlib.sha1(content).hexdigest()
                return self._send(200, content, {"ETag": f'"{etag}"', "X-Repo-Commit": parts[3]}, with_body)
            return self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"}, with_body)

        def _entry(self, name: str) -> dict[str, object]:
            content = (hub.folder / name).read_bytes()
            return {"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}

        def _send(self, status: int, content: bytes, headers: dict[str, str], with_body: bool) -> None:
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            if with_body:
                self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    return Handler


@pytest.fixture
def hub(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[_Hub]:
    found = _Hub(source)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _handler(found))
    with answering(server):
        _use(monkeypatch, f"http://127.0.0.1:{server.server_port}", tmp_path)
        yield found


def _use(monkeypatch: pytest.MonkeyPatch, address: str, tmp_path: Path) -> None:
    """Point huggingface_hub, which reads its environment once, to a server and an empty cache."""
    monkeypatch.setattr(constants, "ENDPOINT", address)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", address + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub-cache"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)


@pytest.fixture
def store(tmp_path: Path):
    return open_store(str(tmp_path / "store"))


def test_a_hub_model_is_pinned_to_its_commit_and_only_the_model_is_downloaded(hub, store, tmp_path: Path) -> None:
    found = import_model(ModelConfig(source="org/tiny"), store, work=tmp_path / "work")
    assert (found.provenance["source"], found.provenance["revision"]) == ("org/tiny", COMMITS["main"])
    assert found.provenance["licence"] == "apache-2.0"
    names = {path.name for path in fetch(found.reference).iterdir()}
    expected = {"config.json", "tokenizer.json", "chat_template.jinja", "README.md", "model.safetensors"}
    assert names == {*expected, "manifest.json"}
    assert not [line for line in hub.asked if "pytorch_model.bin" in line]


def test_a_second_run_downloads_nothing_and_a_new_commit_does(hub, store, tmp_path: Path) -> None:
    first = import_model(ModelConfig(source="org/tiny"), store, work=tmp_path / "work")
    hub.asked.clear()
    again = import_model(ModelConfig(source="org/tiny"), store, work=tmp_path / "work")
    assert again.reused
    assert again.reference == first.reference
    assert not [line for line in hub.asked if "/resolve/" in line]
    hub.commit = "c" * 40
    save_file({"a": numpy.ones(2, numpy.float32)}, hub.folder / "model.safetensors")
    moved = import_model(ModelConfig(source="org/tiny"), store, work=tmp_path / "work")
    assert moved.provenance["revision"] == "c" * 40
    assert moved.reference != first.reference
    pinned = import_model(ModelConfig(source="org/tiny", revision=COMMITS["main"]), store, work=tmp_path / "work")
    assert pinned.reference == first.reference


@pytest.mark.parametrize(
    ("refuse", "config", "says"),
    [
        ((403, "GatedRepo"), {}, r"org/tiny is gated; accept its terms .* HF_TOKEN"),
        ((404, "RepoNotFound"), {}, r"has no model 'org/tiny' that may be read.*HF_TOKEN"),
        ((401, ""), {}, r"refuses to give org/tiny \(401\); set HF_TOKEN"),
        (None, {"revision": "no-such-branch"}, r"model\.revision: org/tiny has no revision 'no-such-branch'"),
    ],
)
def test_what_may_not_be_read_or_is_not_there_is_bad_input(hub, store, tmp_path, refuse, config, says: str) -> None:
    hub.refuse = refuse
    with pytest.raises(BadInputError, match=says):
        import_model(ModelConfig(source="org/tiny", **config), store, work=tmp_path / "work")
    assert store.keys() == []


def test_offline_the_message_names_the_variables(store, tmp_path: Path, monkeypatch) -> None:
    _use(monkeypatch, "http://127.0.0.1:9", tmp_path)
    with pytest.raises(PipelineError, match="does not answer.*HF_ENDPOINT.*HF_TOKEN"):
        import_model(ModelConfig(source="org/tiny"), store, work=tmp_path / "work")


def test_offline_the_hubs_own_cache_serves(hub, store, tmp_path: Path, monkeypatch) -> None:
    first = import_model(ModelConfig(source="org/tiny"), store, work=tmp_path / "work")
    _use(monkeypatch, "http://127.0.0.1:9", tmp_path)
    other = open_store(str(tmp_path / "other-store"))
    again = import_model(ModelConfig(source="org/tiny"), other, work=tmp_path / "work")
    assert again.provenance == first.provenance
    assert again.reference.digest == first.reference.digest


# ---- S3


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedServer]:
    found = SeaweedServer(tmp_path_factory.mktemp("seaweed"), buckets=("artifacts", "models"))
    found.start()
    yield found
    found.stop()


@pytest.fixture
def on_s3(server: SeaweedServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> SeaweedServer:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("GRPO_CACHE", str(tmp_path / "cache"))
    return server


def test_a_plain_folder_in_a_bucket_is_imported_once(on_s3, source: Path, tmp_path: Path) -> None:
    for path in source.iterdir():
        on_s3.client().put_object(Bucket="models", Key=f"plain/{path.name}", Body=path.read_bytes())
    store = open_store("s3://artifacts/plain")
    found = import_model(ModelConfig(source="s3://models/plain"), store, work=tmp_path / "work")
    assert found.provenance["source"] == "s3://models/plain"
    assert not (fetch(found.reference) / "pytorch_model.bin").exists()
    again = import_model(ModelConfig(source="s3://models/plain/"), store, work=tmp_path / "work")
    assert again.reused
    assert again.reference == found.reference
    on_s3.client().put_object(Bucket="models", Key="plain/generation_config.json", Body=b"{}")
    assert not import_model(ModelConfig(source="s3://models/plain"), store, work=tmp_path / "work").reused


def test_an_artifact_of_another_store_is_verified_by_its_own_manifest(on_s3, source: Path, tmp_path: Path) -> None:
    reference = open_store("s3://models/store").put(source, "models/x", provenance={})
    store = open_store(str(tmp_path / "store"))
    found = import_model(ModelConfig(source=reference.uri), store, work=tmp_path / "work")
    assert found.provenance["revision"] == reference.digest
    on_s3.client().put_object(
        Bucket="models", Key="store/models/x/config.json", Body=b'{"model_type": "other"}'.ljust(24)[:23]
    )
    (tmp_path / "cache" / reference.digest / "config.json").unlink()
    with pytest.raises(PipelineError, match=r"config\.json"):
        import_model(ModelConfig(source=reference.uri, licence="x"), store, work=tmp_path / "work")


def test_the_stores_s3_options_serve_for_the_source_too(on_s3, source: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    for path in source.iterdir():
        on_s3.client().put_object(Bucket="models", Key=f"options/{path.name}", Body=path.read_bytes())
    store = open_store(StoreConfig(uri="s3://artifacts/options", endpoint_url=on_s3.endpoint))
    assert not import_model(ModelConfig(source="s3://models/options"), store, work=tmp_path / "work").reused


@pytest.mark.parametrize(
    ("uri", "says"),
    [
        ("s3://models/nothing", "no object is there"),
        ("s3://no-such-bucket/x", "bucket does not exist"),
        ("s3://models/one/config.json", r"is one object and no \.gguf"),
        ("s3://models/one", "has no weights"),
    ],
)
def test_bad_s3_sources_are_bad_input(on_s3, tmp_path: Path, uri: str, says: str) -> None:
    on_s3.client().put_object(Bucket="models", Key="one/config.json", Body=b"{}")
    with pytest.raises(BadInputError, match=says):
        import_model(ModelConfig(source=uri), open_store(str(tmp_path / "store")), work=tmp_path / "work")

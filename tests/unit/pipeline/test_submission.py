"""What is refused before a run begins."""

import http.server
from collections.abc import Iterator
from pathlib import Path

import pytest
from answering import answering

from components.errors import BadInputError
from pipeline.config import load_config
from pipeline.submission import check_inputs


@pytest.fixture
def server() -> Iterator[str]:
    """Answers 200 to everything, as MLflow's /health does."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with answering(http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as running:
        yield f"http://127.0.0.1:{running.server_port}"


def test_a_folder_as_store_beside_an_mlflow_server_is_refused_with_the_mend(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rows.jsonl").write_text('{"question": "2 + 3?", "answer": "5"}\n')
    model = Path("model")
    model.mkdir()
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_bytes(b"")
    Path("run.yaml").write_text("model: {source: model}\ndata: {train: rows.jsonl}\n")
    check_inputs(load_config(Path("run.yaml")), tmp_path / "state")
    config = load_config(Path("run.yaml"), [f"tracking.uri={server}"])
    with pytest.raises(BadInputError, match=r"store\.uri: .* is a folder.*s3://bucket/prefix"):
        check_inputs(config, tmp_path / "state")
    assert not (tmp_path / "state").exists()

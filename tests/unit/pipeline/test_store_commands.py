"""`grpo store`: what is listed, copied, verified, and what garbage collection keeps."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from components.storage.inventory import list_artifacts
from components.storage.references import Reference
from components.storage.store import open_store
from components.tracking.config import TrackingConfig
from components.tracking.references import references_in
from components.tracking.runs import connect, open_run, set_tags
from pipeline.cli import main
from pipeline.store_commands import format_size, needed_references, store_app


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "store"


def put(place: Path, key: str, text: str, **provenance: str) -> Reference:
    folder = place.parent / "content" / key
    folder.mkdir(parents=True)
    (folder / "file.txt").write_text(text)
    return open_store(str(place)).put(folder, key, provenance=provenance)


def grpo(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(store_app, list(arguments))
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def test_ls_shows_whole_keys_that_get_takes(place: Path, tmp_path: Path) -> None:
    key = "models/" + "a" * 64
    put(place, key, "weights", kind="model")
    code, output = grpo("ls", "--store", str(place))
    assert code == 0
    line = output.splitlines()[0]
    assert line.split() == [list_artifacts(open_store(str(place)))[0].reference.digest[:12], "7", "B", "1", "file",
                            "model", key]  # fmt: skip
    assert "1 artifacts, 7 B" in output
    code, _ = grpo("get", line.split()[-1], str(tmp_path / "copy"), "--store", str(place))
    assert code == 0
    assert (tmp_path / "copy" / "file.txt").read_text() == "weights"


def test_get_takes_a_reference_and_refuses_one_of_other_content(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reference = put(place, "models/a", "weights")
    code, _ = grpo("get", str(reference), str(tmp_path / "copy"), "--store", str(place))
    assert code == 0
    other = Reference(reference.uri, "0" * 64)
    with pytest.raises(SystemExit) as stopped:
        main(["store", "get", str(other), str(tmp_path / "second"), "--store", str(place)])
    assert stopped.value.code == 2
    assert "holds no artifact" in capsys.readouterr().err


def test_verify_names_the_damaged_file_and_removes_it_when_asked(place: Path) -> None:
    put(place, "models/a", "weights")
    put(place, "models/b", "others")
    (place / "models/a/file.txt").write_text("weighty")
    code, output = grpo("verify", "--store", str(place))
    assert code == 1
    assert "file.txt" in output
    assert "2 artifacts, 1 damaged" in output
    grpo("verify", "models/a", "--remove-damaged", "--store", str(place))
    assert open_store(str(place)).keys() == ["models/b"]
    assert grpo("verify", "--store", str(place))[0] == 0


def test_gc_keeps_what_runs_name_and_what_that_was_made_from(place: Path, tmp_path: Path) -> None:
    base = put(place, "models/base", "base")
    merged = put(place, "merged/m", "merged", base=str(base))
    verdict = put(place, "verdicts/v", "verdict", inputs=json.dumps({"candidate": str(merged)}))
    put(place, "reports/r", "report", kind="report", verdict=str(verdict))
    put(place, "models/unused", "unused")
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    tracking = TrackingConfig(uri=uri)
    client = connect(tracking)
    run = open_run(client, tracking, name="run", key="key")
    set_tags(client, run.run_id, {"grpo.verdict_artifact": str(verdict)})

    arguments = ["gc", "--store", str(place), "--tracking-uri", uri, "--older-than-hours", "0"]
    code, output = grpo(*arguments)
    assert code == 0
    assert "would remove models/unused" in output
    assert len(open_store(str(place)).keys()) == 5
    grpo(*arguments, "--remove")
    assert open_store(str(place)).keys() == ["merged/m", "models/base", "reports/r", "verdicts/v"]


def test_gc_refuses_a_mistyped_database_rather_than_keep_nothing(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(place, "models/a", "weights")
    missing = f"sqlite:///{tmp_path}/mistyped.db"
    with pytest.raises(SystemExit) as stopped:
        main(["store", "gc", "--store", str(place), "--tracking-uri", missing, "--older-than-hours", "0", "--remove"])
    assert stopped.value.code == 2
    assert "mistyped.db" in capsys.readouterr().err
    assert open_store(str(place)).keys() == ["models/a"]


def test_the_same_content_at_another_place_keeps_what_it_was_made_from(place: Path) -> None:
    base = put(place, "models/base", "base")
    merged = put(place, "merged/m", "merged", base=str(base))
    elsewhere = Reference("s3://bucket/merged/m", merged.digest)
    needed = needed_references(list_artifacts(open_store(str(place))), {str(elsewhere)})
    assert str(base) in needed


def test_references_are_found_within_longer_texts() -> None:
    reference = "s3://bucket/models/a@sha256:" + "0" * 64
    assert references_in([json.dumps({"uri": reference}), "nothing", f"see {reference}."]) == {reference}


@pytest.mark.parametrize(("size", "text"), [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (5 * 2**30, "5.0 GiB")])
def test_sizes_are_shown_in_words(size: int, text: str) -> None:
    assert format_size(size) == text

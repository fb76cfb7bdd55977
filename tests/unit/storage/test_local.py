"""The file:// store: whole or not at all, verified on every read, never overwritten."""

import errno
import multiprocessing
import os
import shutil
from pathlib import Path

import pytest

from components.errors import BadInputError, PipelineError
from components.storage import local
from components.storage.manifest import DamagedArtifactError
from components.storage.references import Reference
from components.storage.store import NoteChangedError, fetch, open_store


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    (folder / "sub").mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"weights" * 1000)
    (folder / "sub" / "config.json").write_text("{}")
    return folder


@pytest.fixture
def store(tmp_path: Path) -> local.FileStore:
    found = open_store(str(tmp_path / "store"))
    assert isinstance(found, local.FileStore)
    return found


def test_put_then_fetch_gives_the_same_files_in_place(store, source: Path) -> None:
    reference = store.put(source, "models/abc", provenance={"source": "here"})
    folder = fetch(str(reference))
    assert folder == store.root / "models" / "abc"
    assert (folder / "sub" / "config.json").read_text() == "{}"
    assert store.read_manifest(reference).provenance == {"source": "here"}
    assert store.find("models/abc") == reference


def test_the_same_again_copies_nothing(store, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reference = store.put(source, "models/abc", provenance={})
    before = (store.root / "models/abc/model.safetensors").stat()

    def refuse(*_: object) -> None:
        raise AssertionError("copied")

    monkeypatch.setattr(shutil, "copyfile", refuse)
    assert store.put(source, "models/abc", provenance={}) == reference
    assert (store.root / "models/abc/model.safetensors").stat() == before


def test_put_mends_an_artifact_whose_file_was_damaged(store, source: Path) -> None:
    reference = store.put(source, "models/abc", provenance={})
    (store.root / "models/abc/model.safetensors").write_bytes(b"x")
    (store.root / "models/abc/sub/config.json").unlink()
    assert store.put(source, "models/abc", provenance={}) == reference
    fetch(reference)


def test_other_content_under_a_complete_key_is_refused_and_the_first_stays(store, source: Path) -> None:
    reference = store.put(source, "models/abc", provenance={})
    (source / "model.safetensors").write_bytes(b"other")
    with pytest.raises(PipelineError, match="already holds other content"):
        store.put(source, "models/abc", provenance={})
    fetch(reference)


def test_a_flipped_byte_is_found_by_fetch_and_verify(store, source: Path) -> None:
    reference = store.put(source, "models/abc", provenance={})
    path = store.root / "models/abc/model.safetensors"
    content = bytearray(path.read_bytes())
    content[3500] ^= 1
    path.write_bytes(content)
    with pytest.raises(DamagedArtifactError, match=r"'model\.safetensors' has sha256 .*delete .*run again"):
        fetch(reference)
    with pytest.raises(DamagedArtifactError, match=r"model\.safetensors"):
        store.verify("models/abc")


def test_a_reference_to_another_content_is_refused(store, source: Path) -> None:
    reference = store.put(source, "models/abc", provenance={})
    with pytest.raises(PipelineError, match="another artifact than the one meant"):
        fetch(Reference(reference.uri, "0" * 64))


def test_without_a_manifest_nothing_is_there(store, source: Path) -> None:
    reference = store.put(source, "models/abc", provenance={})
    (store.root / "models/abc/manifest.json").unlink()
    assert store.find("models/abc") is None
    assert store.keys() == []
    with pytest.raises(PipelineError, match="no complete artifact"):
        fetch(reference)


def test_no_space_left_is_bad_input_and_leaves_nothing(store, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_source: Path, target: Path) -> None:
        Path(target).write_bytes(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))

    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(BadInputError, match=r"no space left on the disk of .*models"):
        store.put(source, "models/abc", provenance={})
    assert list((store.root / "models").iterdir()) == []


def test_too_little_space_is_told_before_anything_is_copied(store, source: Path, monkeypatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 9, 1))
    with pytest.raises(BadInputError, match="MB needed"):
        store.put(source, "models/abc", provenance={})


def test_a_source_that_changes_while_it_is_stored_is_refused(store, source: Path, monkeypatch) -> None:
    copy = shutil.copyfile

    def change(origin: Path, target: Path) -> None:
        copy(origin, target)
        if Path(origin).name == "config.json":
            Path(origin).write_text("{} ")

    monkeypatch.setattr(shutil, "copyfile", change)
    with pytest.raises(PipelineError, match="changed while it was stored"):
        store.put(source, "models/abc", provenance={})
    assert store.find("models/abc") is None


def test_artifacts_do_not_nest(store, source: Path) -> None:
    store.put(source, "training/abc", provenance={})
    with pytest.raises(BadInputError, match="lies inside the artifact"):
        store.put(source, "training/abc/checkpoint-20", provenance={})


def test_a_folder_without_a_manifest_makes_room_and_is_kept(store, source: Path, caplog) -> None:
    (store.root / "models/abc").mkdir(parents=True)
    (store.root / "models/abc/notes.txt").write_text("mine")
    store.verify(store.put(source, "models/abc", provenance={}))
    assert store.keys() == ["models/abc"]
    aside = next((store.root / "models").glob("abc.without-manifest-*"))
    assert (aside / "notes.txt").read_text() == "mine"
    assert str(aside) in caplog.text


def test_what_cannot_make_room_is_told(store, source: Path) -> None:
    (store.root / "models").mkdir(parents=True)
    (store.root / "models/abc").write_text("mine")
    store.put(source, "training/abc/adapter", provenance={})
    for key in ("models/abc", "training/abc"):
        with pytest.raises(PipelineError, match="in the way"):
            store.put(source, key, provenance={})
    assert (store.root / "models/abc").read_text() == "mine"
    assert store.keys() == ["training/abc/adapter"]


def test_keys_are_whole_segments_and_skip_hidden_and_inner_manifests(store, source: Path) -> None:
    for key in ("a/1", "a/2", "ab/1", "a-b"):
        store.put(source, key, provenance={})
    (source / "sub" / "manifest.json").write_text("a model's own file")
    store.put(source, "z", provenance={})
    assert store.keys() == ["a-b", "a/1", "a/2", "ab/1", "z"]
    assert store.keys("a") == ["a/1", "a/2"]
    assert store.keys("a/") == ["a/1", "a/2"]
    assert store.keys("a/1") == ["a/1"]
    assert store.keys("none") == []


@pytest.mark.parametrize("key", ["", "/a", "a/", "../a", "a/../b", ".hidden", "a/.b", "a b", "a//b", "é"])
def test_a_key_that_could_leave_the_store_is_refused(store, source: Path, key: str) -> None:
    with pytest.raises(BadInputError, match="artifact key"):
        store.put(source, key, provenance={})


def test_a_store_with_spaces_and_signs_in_its_path_works(tmp_path: Path, source: Path) -> None:
    store = open_store(str(tmp_path / "my store 100% é"))
    reference = store.put(source, "models/abc", provenance={})
    assert open_store(store.uri).find("models/abc") == reference
    assert fetch(Reference.parse(str(reference))).is_dir()


def test_in_place_the_folder_itself_is_used_and_checked(store, source: Path) -> None:
    reference = store.put_in_place(source, "models/abc", provenance={}, only=("model.safetensors",))
    assert not (store.root / "models/abc/model.safetensors").exists()
    (source / "README.md").write_text("files that are not named may change")
    assert fetch(reference) == source
    (source / "model.safetensors").write_bytes(b"changed")
    with pytest.raises(DamagedArtifactError, match=r"used in place: .*model\.safetensors.*model\.mirror: true"):
        fetch(reference)
    shutil.rmtree(source)
    with pytest.raises(DamagedArtifactError, match=r"is missing.*model\.mirror: true"):
        fetch(reference)


def test_check_writable_leaves_nothing_and_names_the_mend(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "new" / "store"))
    store.check_writable()
    assert not (tmp_path / "new" / "store").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInputError, match=r"cannot be written .*store\.uri"):
        open_store(str(tmp_path / "file" / "store")).check_writable()


def test_delete_and_clean_remove_only_what_they_should(store, source: Path) -> None:
    store.put(source, "a/1", provenance={})
    store.put(source, "a/2", provenance={})
    store.delete("a/1")
    store.delete("a/none")
    assert store.keys() == ["a/2"]
    leftover = store.root / "a" / ".3-abc.tmp"
    leftover.mkdir()
    assert store.clean(3600, dry_run=False) == []
    os.utime(leftover, (1, 1))
    assert store.clean(3600, dry_run=True) == ["a/.3-abc.tmp"]
    assert leftover.exists()
    assert store.clean(3600, dry_run=False) == ["a/.3-abc.tmp"]
    assert sorted(path.name for path in (store.root / "a").iterdir()) == ["2"]


def test_notes_are_written_only_over_the_version_that_was_read(store) -> None:
    tag = store.write_note("logs/x", b"1", replaces=None)
    with pytest.raises(NoteChangedError):
        store.write_note("logs/x", b"2", replaces=None)
    second = store.write_note("logs/x", b"2", replaces=tag)
    with pytest.raises(NoteChangedError):
        store.write_note("logs/x", b"3", replaces=tag)
    with pytest.raises(NoteChangedError):
        store.delete_note("logs/x", tag=tag)
    assert store.read_note("logs/x").content == b"2"
    store.delete_note("logs/x", tag=second)
    assert store.read_note("logs/x") is None
    assert store.keys() == []


def _write(uri: str, folder: Path, gate, answers) -> None:
    store = open_store(uri)
    gate.wait()
    try:
        answers.put(("won", str(store.put(folder, "models/race", provenance={}))))
    except PipelineError as error:
        answers.put(("told", str(error)))


@pytest.mark.parametrize("same", [True, False])
def test_of_two_writers_one_wins_and_the_other_finds_it_or_is_told(tmp_path: Path, same: bool) -> None:
    context = multiprocessing.get_context("spawn")
    gate, answers = context.Barrier(2), context.Queue()
    writers = []
    for number in range(2):
        folder = tmp_path / f"source{number}"
        folder.mkdir()
        for name in range(50):
            (folder / f"{name}").write_text("same" if same else f"{number}")
        writers.append(context.Process(target=_write, args=(str(tmp_path / "store"), folder, gate, answers)))
    for writer in writers:
        writer.start()
    results = sorted(answers.get(timeout=60) for _ in writers)
    for writer in writers:
        writer.join()
    outcomes = [outcome for outcome, _ in results]
    assert outcomes == (["won", "won"] if same else ["told", "won"])
    assert same or "already holds other content" in results[0][1]
    fetch(results[-1][1])
    assert [path.name for path in (tmp_path / "store" / "models").iterdir()] == ["race"]

"""The manifest: the same bytes for the same content, and nothing outside the folder."""

import json
from pathlib import Path

import pytest

from components.errors import BadInputError, PipelineError
from components.storage.manifest import DamagedArtifactError, FileEntry, Manifest, find_fault, make_manifest


def _folder(root: Path, **files: str) -> Path:
    for name, content in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


def test_same_content_elsewhere_and_later_has_the_same_digest(tmp_path: Path) -> None:
    first = make_manifest(_folder(tmp_path / "one", b="2", a="1", sub__c="3"), {"x": 1, "a": [1]})
    second = make_manifest(_folder(tmp_path / "two", sub__c="3", a="1", b="2"), {"a": [1], "x": 1})
    assert first.to_bytes() == second.to_bytes()
    assert [entry.path for entry in first.files] == ["a", "b", "sub/c"]


def test_provenance_and_content_both_change_the_digest(tmp_path: Path) -> None:
    folder = _folder(tmp_path, a="1")
    first = make_manifest(folder, {"revision": "x"}).digest
    assert make_manifest(folder, {"revision": "y"}).digest != first
    _folder(tmp_path, a="2")
    assert make_manifest(folder, {"revision": "x"}).digest != first


def test_reads_what_it_wrote(tmp_path: Path) -> None:
    manifest = make_manifest(_folder(tmp_path, a="1"), {"x": None}, location="/somewhere")
    assert Manifest.from_bytes(manifest.to_bytes(), "file:///x") == manifest


@pytest.mark.parametrize("path", ["../a", "/etc/passwd", "a/../../b", "a//b", "", ".", "manifest.json", "a\\b", 3])
def test_a_path_that_leaves_the_folder_is_refused(path: object) -> None:
    document = {"format": 1, "provenance": {}, "files": [{"path": path, "size": 1, "sha256": "0" * 64}]}
    with pytest.raises(DamagedArtifactError, match="damaged or not a manifest"):
        Manifest.from_bytes(json.dumps(document).encode(), "file:///x")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"{}", b'{"format": 1}', b"\xff\xfe"])
def test_what_is_no_manifest_is_told_as_damage(content: bytes) -> None:
    with pytest.raises(DamagedArtifactError, match=r"file:///x/manifest\.json"):
        Manifest.from_bytes(content, "file:///x")


def test_a_newer_format_is_not_called_damaged() -> None:
    with pytest.raises(PipelineError, match="has format 2") as caught:
        Manifest.from_bytes(b'{"format": 2, "files": [], "provenance": {}}', "file:///x")
    assert not isinstance(caught.value, DamagedArtifactError)


def test_a_manifest_of_ours_in_the_folder_is_left_out_and_a_foreign_one_refused(tmp_path: Path) -> None:
    folder = _folder(tmp_path, a="1")
    manifest = make_manifest(folder, {})
    (folder / "manifest.json").write_bytes(manifest.to_bytes())
    assert make_manifest(folder, {}) == manifest
    (folder / "manifest.json").write_text('{"name": "a web app"}')
    with pytest.raises(BadInputError, match="rename this file"):
        make_manifest(folder, {})


def test_a_link_to_a_file_counts_as_the_file_and_other_links_are_refused(tmp_path: Path) -> None:
    _folder(tmp_path / "blobs", x="weights")
    folder = _folder(tmp_path / "snapshot", a="1")
    (folder / "model.bin").symlink_to(tmp_path / "blobs" / "x")
    assert {entry.path: entry.size for entry in make_manifest(folder, {}).files} == {"a": 1, "model.bin": 7}
    (folder / "folder").symlink_to(tmp_path / "blobs")
    with pytest.raises(BadInputError, match="link to a folder"):
        make_manifest(folder, {})
    (folder / "folder").unlink()
    (folder / "gone").symlink_to(tmp_path / "nowhere")
    with pytest.raises(BadInputError, match="broken link"):
        make_manifest(folder, {})


def test_an_empty_or_missing_folder_cannot_be_stored(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="holds no file"):
        make_manifest(tmp_path, {})
    with pytest.raises(BadInputError, match="is not a folder"):
        make_manifest(tmp_path / "none", {})


def test_provenance_that_is_no_json_is_refused(tmp_path: Path) -> None:
    folder = _folder(tmp_path, a="1")
    for value in (float("nan"), Path("x"), {1, 2}):
        with pytest.raises(BadInputError, match="provenance"):
            _ = make_manifest(folder, {"x": value}).digest


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (lambda folder: (folder / "a").write_text("2"), "file 'a' has sha256"),
        (lambda folder: (folder / "a").write_text("12"), "file 'a' has 2 bytes, its manifest says 1"),
        (lambda folder: (folder / "sub" / "c").unlink(), "file 'sub/c' is missing"),
        (lambda folder: (folder / "sub" / "new").write_text(""), "file 'sub/new' is not in the manifest"),
    ],
)
def test_each_difference_is_found_and_named(tmp_path: Path, harm, says: str) -> None:
    folder = _folder(tmp_path, a="1", sub__c="3")
    manifest = make_manifest(folder, {})
    assert find_fault(folder, manifest) is None
    harm(folder)
    assert says in str(find_fault(folder, manifest))


def test_entries_are_sorted_and_sizes_add_up() -> None:
    manifest = Manifest((FileEntry("a", 3, "0" * 64), FileEntry("b", 4, "0" * 64)))
    assert manifest.size == 7

"""What `grpo store` shows, copies out, verifies and removes."""

import os
from pathlib import Path

import pytest

from components.errors import BadInputError
from components.storage.inventory import collect_garbage, copy_out, list_artifacts, verify_artifacts
from components.storage.lease import hold
from components.storage.references import Reference
from components.storage.store import open_store


@pytest.fixture
def store(tmp_path: Path):
    found = open_store(str(tmp_path / "store"))
    source = tmp_path / "source"
    source.mkdir()
    for key in ("models/a", "merged/b", "training/c/checkpoint-1"):
        (source / "x").write_text(key)
        found.put(source, key, provenance={"for": key})
        os.utime(found.root / key / "manifest.json", (1, 1))
    return found


def test_list_tells_size_files_and_provenance(store) -> None:
    listed = list_artifacts(store)
    assert [(item.key, item.files, item.size) for item in listed] == [
        ("merged/b", 1, 8),
        ("models/a", 1, 8),
        ("training/c/checkpoint-1", 1, 23),
    ]
    assert listed[0].provenance == {"for": "merged/b"}


def test_copy_out_gives_a_verified_copy_and_refuses_an_existing_target(store, tmp_path: Path) -> None:
    target = copy_out(store, "models/a", tmp_path / "copies" / "model")
    assert (target / "x").read_text() == "models/a"
    with pytest.raises(BadInputError, match="exists already"):
        copy_out(store, "models/a", target)
    with pytest.raises(BadInputError, match="grpo store ls"):
        copy_out(store, "models/none", tmp_path / "other")
    assert sorted(path.name for path in target.parent.iterdir()) == ["model"]


def test_verify_names_the_damaged_one_and_removes_it_on_request(store) -> None:
    assert verify_artifacts(store) == []
    (store.root / "merged/b/x").write_text("MERGED/B")
    (damage,) = verify_artifacts(store)
    assert damage.key == "merged/b"
    assert "sha256" in damage.fault
    assert verify_artifacts(store, "models") == []
    (damage,) = verify_artifacts(store, remove_damaged=True)
    assert damage.removed
    assert store.keys() == ["models/a", "training/c/checkpoint-1"]


def test_gc_says_first_and_removes_only_what_nobody_keeps(store) -> None:
    keep = [store.find("models/a"), str(store.find("merged/b"))]
    planned = collect_garbage(store, keep)
    assert [item.key for item in planned.removed] == ["training/c/checkpoint-1"]
    assert (planned.kept, planned.size) == (2, 23)
    assert len(store.keys()) == 3
    assert collect_garbage(store, keep, dry_run=False) == planned
    assert store.keys() == ["merged/b", "models/a"]


def test_gc_keeps_the_young_and_what_a_live_run_owns(store) -> None:
    os.utime(store.root / "models/a/manifest.json")
    with hold(store, "training/c", what="a run"):
        assert [item.key for item in collect_garbage(store, []).removed] == ["merged/b"]
    assert [item.key for item in collect_garbage(store, []).removed] == ["merged/b", "training/c/checkpoint-1"]


def test_gc_keeps_what_is_named_by_place_or_by_content(store) -> None:
    merged, model = store.find("merged/b"), store.find("models/a")
    keep = [Reference(merged.uri, "0" * 64), Reference("file:///moved/elsewhere", model.digest)]
    assert [item.key for item in collect_garbage(store, keep).removed] == ["training/c/checkpoint-1"]


def test_gc_with_a_malformed_reference_removes_nothing(store) -> None:
    with pytest.raises(BadInputError):
        collect_garbage(store, ["models/a"], dry_run=False)
    assert len(store.keys()) == 3

"""The S3 store on a real server: whole artifacts, verified, going on after what breaks."""

import hashlib
import os
import shutil
import threading
from pathlib import Path

import pytest
from botocore.exceptions import ClientError

from components.errors import BadInputError, PipelineError
from components.storage import s3_transfer
from components.storage.config import StoreConfig
from components.storage.inventory import collect_garbage, copy_out, list_artifacts, verify_artifacts
from components.storage.lease import Lease, held, hold
from components.storage.manifest import DamagedArtifactError
from components.storage.plain import download_source, find_source
from components.storage.references import Reference
from components.storage.s3 import S3Store
from components.storage.s3_small import SmallObjects
from components.storage.store import NoteChangedError, default_cache, fetch, open_store

MIB = 1 << 20


def _same_files(one: Path, two: Path) -> bool:
    names = [sorted(p.relative_to(top).as_posix() for p in top.rglob("*") if p.is_file()) for top in (one, two)]
    names = [[name for name in found if name != "manifest.json"] for found in names]
    return names[0] == names[1] and all((one / name).read_bytes() == (two / name).read_bytes() for name in names[0])


def _times(server, prefix: str) -> dict[str, object]:
    listed = server.client().list_objects_v2(Bucket="artifacts", Prefix=f"{prefix}/models/")
    return {item["Key"]: (item["LastModified"], item["ETag"]) for item in listed["Contents"]}


def test_a_folder_with_a_multipart_file_comes_back_the_same(store, make_folder) -> None:
    source = make_folder("source", model=64 * MIB + 12345, sub__config="{}", empty="", medium=2 * MIB)
    reference = store.put(source, "models/abc", provenance={"source": "x"})
    folder = fetch(str(reference))
    assert _same_files(source, folder)
    assert folder == default_cache() / reference.digest
    assert store.verify(reference).provenance == {"source": "x"}
    assert sorted(path.name for path in folder.parent.iterdir()) == [reference.digest, f"{reference.digest}.lock"]


def test_the_same_again_sends_nothing(store, server, prefix: str, make_folder) -> None:
    source = make_folder("source", model=6 * MIB, a="1")
    reference = store.put(source, "models/abc", provenance={})
    before = _times(server, prefix)
    assert store.put(source, "models/abc", provenance={}) == reference
    assert _times(server, prefix) == before


def test_an_interrupted_put_sends_only_what_is_missing(store, server, prefix: str, make_folder, monkeypatch) -> None:
    source = make_folder("source", model=6 * MIB, a="1", b="2")
    sent: list[str] = []
    send = s3_transfer._put_small

    def fail_on_b(bucket, prefix, directory, entry, progress) -> None:
        if entry.path == "b" and not sent.count("b"):
            sent.append("b")
            raise PipelineError("the network is gone")
        sent.append(entry.path)
        send(bucket, prefix, directory, entry, progress)

    monkeypatch.setattr(s3_transfer, "_put_small", fail_on_b)
    with pytest.raises(PipelineError, match="network is gone"):
        store.put(source, "models/abc", provenance={})
    assert store.find("models/abc") is None
    sent[:] = ["b"]
    reference = store.put(source, "models/abc", provenance={})
    assert sent == ["b", "b"]
    assert _same_files(source, fetch(reference))


def test_what_an_interrupted_put_of_other_content_left_is_replaced(store, server, prefix, make_folder) -> None:
    old, new = make_folder("old", model="old weights", extra="x"), make_folder("new", model="new weights")
    bucket = s3_transfer.Bucket(store._client, "artifacts", StoreConfig(uri=store.uri))
    s3_transfer.upload_files(bucket, f"{prefix}/models/abc", old, s3_make_entries(old))
    reference = store.put(new, "models/abc", provenance={})
    assert _same_files(new, fetch(reference))
    store.verify(reference)


def s3_make_entries(folder: Path):
    from components.storage.manifest import make_manifest

    return make_manifest(folder, {}).files


@pytest.mark.parametrize("name", ["small", "large"])
def test_a_flipped_byte_is_found_and_no_folder_appears(store, server, prefix: str, make_folder, name: str) -> None:
    source = make_folder("source", small="content", large=12 * MIB)
    reference = store.put(source, "models/abc", provenance={})
    content = bytearray((source / name).read_bytes())
    content[5] ^= 1
    server.client().put_object(Bucket="artifacts", Key=f"{prefix}/models/abc/{name}", Body=bytes(content))
    with pytest.raises(DamagedArtifactError, match=rf"models/abc/{name} has another sha256.*--remove-damaged"):
        fetch(reference)
    assert not (default_cache() / reference.digest).exists()
    with pytest.raises(DamagedArtifactError, match=rf"'{name}' has sha256"):
        store.verify(reference)
    server.client().put_object(Bucket="artifacts", Key=f"{prefix}/models/abc/{name}", Body=(source / name).read_bytes())
    assert _same_files(source, fetch(reference))


def test_objects_shortened_deleted_or_added_underneath_are_told(store, server, prefix: str, make_folder) -> None:
    source = make_folder("source", small="content", large=12 * MIB)
    reference = store.put(source, "models/abc", provenance={})
    client, key = server.client(), f"{prefix}/models/abc"
    client.put_object(Bucket="artifacts", Key=f"{key}/large", Body=b"short")
    with pytest.raises(PipelineError, match="shorter|bytes instead of"):
        fetch(reference)
    client.delete_object(Bucket="artifacts", Key=f"{key}/large")
    with pytest.raises(PipelineError, match="an object is not there"):
        fetch(reference)
    with pytest.raises(DamagedArtifactError, match="'large' is missing"):
        store.verify(reference)
    assert store.put(source, "models/abc", provenance={}) == reference
    fetch(reference)
    client.put_object(Bucket="artifacts", Key=f"{key}/more", Body=b"1")
    with pytest.raises(DamagedArtifactError, match="'more' is not in the manifest"):
        store.verify(reference)


def test_a_damaged_copy_in_the_cache_is_fetched_anew(store, make_folder) -> None:
    source = make_folder("source", a="content", b="2")
    folder = fetch(store.put(source, "models/abc", provenance={}))
    (folder / "a").write_text("CONTENT")
    assert _same_files(source, fetch(store.find("models/abc")))


def test_another_artifact_at_the_same_place_is_refused(store, make_folder) -> None:
    reference = store.put(make_folder("one", a="1"), "models/abc", provenance={})
    with pytest.raises(PipelineError, match="already holds other content"):
        store.put(make_folder("two", a="2"), "models/abc", provenance={})
    with pytest.raises(PipelineError, match="another artifact than the one meant"):
        fetch(Reference(reference.uri, "0" * 64))


def test_artifacts_do_not_nest_and_children_survive(store, make_folder) -> None:
    source = make_folder("source", a="1")
    reference = store.put(source, "training/abc/checkpoint-1", provenance={})
    with pytest.raises(BadInputError, match="choose a key beside it"):
        store.put(source, "training/abc", provenance={})
    with pytest.raises(BadInputError, match="lies inside the artifact"):
        store.put(source, "training/abc/checkpoint-1/deeper", provenance={})
    fetch(reference)


def test_keys_are_whole_segments(store, server, prefix: str, make_folder) -> None:
    source = make_folder("source", a="1", sub__manifest="x")
    (source / "sub" / "manifest").rename(source / "sub" / "manifest.json")
    for key in ("a/1", "a/2", "ab/1", "a-b"):
        store.put(source, key, provenance={})
    server.client().put_object(Bucket="artifacts", Key=f"{prefix}/a/3/half", Body=b"1")
    with hold(store, "a/4", what="x"):
        assert store.keys() == ["a-b", "a/1", "a/2", "ab/1"]
    assert store.keys("a") == ["a/1", "a/2"]
    assert store.keys("a/1") == ["a/1"]


def test_no_space_left_is_bad_input_and_what_came_is_kept(store, make_folder, monkeypatch) -> None:
    source = make_folder("source", large=16 * MIB, a="1")
    reference = store.put(source, "models/abc", provenance={})
    write, written = os.pwrite, []

    def fill_up(descriptor: int, content: bytes, offset: int) -> int:
        if sum(written) + len(content) > 8 * MIB:
            raise OSError(28, os.strerror(28))
        written.append(len(content))
        return write(descriptor, content, offset)

    monkeypatch.setattr(os, "pwrite", fill_up)
    with pytest.raises(BadInputError, match="no space left on the disk of"):
        fetch(reference)
    assert not (default_cache() / reference.digest).exists()
    monkeypatch.setattr(os, "pwrite", write)
    assert _same_files(source, fetch(reference))

    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 9, 1))
    shutil.rmtree(default_cache())
    with pytest.raises(BadInputError, match="MB needed"):
        fetch(reference)


def test_small_objects_go_the_short_way_and_a_wrong_checksum_is_refused(
    store, server, prefix: str, monkeypatch
) -> None:
    objects = SmallObjects(store._bucket)
    content = b"content"
    right, wrong = hashlib.sha256(content).digest(), hashlib.sha256(b"other").digest()
    with monkeypatch.context() as patch:
        # The client's own way is closed: whatever passes went the short way.
        patch.setattr(store._client, "put_object", None)
        patch.setattr(store._client, "get_object", None)
        objects.write(f"{prefix}/a b+ü", content, right, {"grpo-sha256": right.hex()})
        assert objects.read(f"{prefix}/a b+ü") == content
    head = server.client().head_object(Bucket="artifacts", Key=f"{prefix}/a b+ü")
    assert head["Metadata"] == {"grpo-sha256": right.hex()}
    with pytest.raises(ClientError, match="BadDigest"):
        objects.write(f"{prefix}/wrong", content, wrong, {})
    assert objects.read(f"{prefix}/a b+ü", head["ETag"]) == content
    for key, etag, code in ((f"{prefix}/none", None, "NoSuchKey"), (f"{prefix}/a b+ü", '"1"', "PreconditionFailed")):
        with pytest.raises(ClientError, match=code):
            SmallObjects(store._bucket).read(key, etag)


def test_two_fetches_at_once_download_once(store, make_folder, monkeypatch) -> None:
    source = make_folder("source", **{f"f{number}": f"{number}" for number in range(30)})
    reference = store.put(source, "models/abc", provenance={})
    reads: list[str] = []
    read = s3_transfer._Download._read
    monkeypatch.setattr(s3_transfer._Download, "_read", lambda self: (reads.append(self._item.path), read(self))[1])
    folders: list[Path] = []
    threads = [threading.Thread(target=lambda: folders.append(fetch(reference))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(folders)) == 1
    assert len(folders) == 3
    assert sorted(reads) == sorted(f"f{number}" for number in range(30))


def test_in_place_through_an_s3_store(store, make_folder) -> None:
    source = make_folder("source", a="1", b="2")
    reference = store.put_in_place(source, "models/abc", provenance={}, only=("a",))
    assert store.put_in_place(source, "models/abc", provenance={}, only=("a",)) == reference
    assert fetch(reference) == source
    (source / "a").write_text("2")
    with pytest.raises(DamagedArtifactError, match="used in place"):
        fetch(reference)


def test_inventory_on_s3(store, make_folder, tmp_path: Path) -> None:
    kept = store.put(make_folder("one", a="1"), "models/kept", provenance={})
    store.put(make_folder("two", b="22"), "models/old", provenance={})
    assert [(item.key, item.size) for item in list_artifacts(store)] == [("models/kept", 1), ("models/old", 2)]
    assert (copy_out(store, "models/old", tmp_path / "out") / "b").read_text() == "22"
    assert verify_artifacts(store) == []
    assert collect_garbage(store, [kept]).removed == ()
    done = collect_garbage(store, [kept], dry_run=False, grace_s=-1)
    assert [item.key for item in done.removed] == ["models/old"]
    assert store.keys() == ["models/kept"]


def test_clean_removes_our_leftovers_and_nobody_elses(store, server, prefix: str, make_folder) -> None:
    client = server.client()
    kept = store.put(make_folder("one", a="1"), "models/kept", provenance={})
    source = make_folder("half", a="1")
    bucket = s3_transfer.Bucket(store._client, "artifacts", StoreConfig(uri=store.uri))
    s3_transfer.upload_files(bucket, f"{prefix}/models/half", source, s3_make_entries(source))
    client.put_object(Bucket="artifacts", Key=f"{prefix}/foreign/a", Body=b"1")
    client.create_multipart_upload(Bucket="artifacts", Key=f"{prefix}/models/cut/model")
    assert store.clean(3600, dry_run=False) == []
    expected = ["models/cut/model (unfinished upload)", "models/half/a"]
    assert store.clean(-1, dry_run=True) == expected
    assert store.clean(-1, dry_run=False) == expected
    assert store.clean(-1, dry_run=True) == []
    store.verify(kept)
    client.head_object(Bucket="artifacts", Key=f"{prefix}/foreign/a")


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


def test_a_note_whose_answer_was_lost_is_not_taken_for_a_strangers(store, monkeypatch) -> None:
    put = store._client.put_object

    def twice(**arguments):
        put(**arguments)
        return put(**arguments)

    monkeypatch.setattr(store._client, "put_object", twice)
    tag = store.write_note("logs/x", b"mine", replaces=None)
    assert store.read_note("logs/x").tag == tag


def test_a_lease_on_s3_refuses_a_second_owner_and_ends(store) -> None:
    with hold(store, "training/abc", what="run blue") as lease:
        with pytest.raises(PipelineError, match="in use by run blue"), hold(store, "training/abc", what="run red"):
            pass
        lease._renewed = 0.0
        lease.check()
    assert not held(store, "training/abc")
    assert store.read_note("leases/training/abc.lease") is None


@pytest.mark.slow
def test_a_silent_owner_on_s3_is_replaced_when_its_time_is_over(store) -> None:
    silent = Lease(store, "x", what="silent", ttl_s=5.0)
    silent._facts["place"] = "another machine"
    silent._write(None)
    with hold(store, "x", what="second", wait_s=30, ttl_s=5.0):
        silent._renewed = 0.0
        with pytest.raises(PipelineError, match="taken over"):
            silent.check()


def test_a_plain_folder_and_a_plain_file_are_downloaded_once(server, prefix: str) -> None:
    client = server.client()
    for name in ("data/a.jsonl", "data/sub/b.jsonl", "database.jsonl"):
        client.put_object(Bucket="artifacts", Key=f"{prefix}/{name}", Body=name.encode())
    source = find_source(f"s3://artifacts/{prefix}/data/")
    assert [item.path for item in source.objects] == ["a.jsonl", "sub/b.jsonl"]
    folder = download_source(source)
    assert (folder / "sub" / "b.jsonl").read_text() == "data/sub/b.jsonl"
    changed = (folder / "a.jsonl").stat().st_mtime_ns
    assert download_source(find_source(f"s3://artifacts/{prefix}/data")) == folder
    assert (folder / "a.jsonl").stat().st_mtime_ns == changed
    file = download_source(find_source(f"s3://artifacts/{prefix}/database.jsonl"))
    assert (file.name, file.read_text()) == ("database.jsonl", "database.jsonl")
    with pytest.raises(BadInputError, match="no object is there"):
        find_source(f"s3://artifacts/{prefix}/dat")


def test_a_plain_object_that_changes_after_it_was_listed_is_told(server, prefix: str) -> None:
    client = server.client()
    client.put_object(Bucket="artifacts", Key=f"{prefix}/data/a", Body=b"12")
    source = find_source(f"s3://artifacts/{prefix}/data")
    client.put_object(Bucket="artifacts", Key=f"{prefix}/data/a", Body=b"21")
    with pytest.raises(PipelineError, match="changed while it was read"):
        download_source(source)
    again = find_source(f"s3://artifacts/{prefix}/data")
    assert again.identity != source.identity
    assert (download_source(again) / "a").read_text() == "21"


def test_check_writable_leaves_nothing(store, server, prefix: str) -> None:
    store.check_writable()
    assert server.client().list_objects_v2(Bucket="artifacts", Prefix=prefix)["KeyCount"] == 0


def test_a_store_at_the_root_of_a_bucket_works(server, make_folder) -> None:
    store = open_store("s3://artifacts")
    assert isinstance(store, S3Store)
    reference = store.put(make_folder("source", a="1"), "rooted", provenance={})
    assert reference.uri == "s3://artifacts/rooted"
    assert fetch(reference).is_dir()
    assert store.keys("rooted") == ["rooted"]
    store.delete("rooted")
    assert store.find("rooted") is None

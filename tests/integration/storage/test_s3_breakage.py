"""What breaks between us and a real S3 server: killed servers and clients, wrong keys and clocks, cut connections."""

import contextlib
import multiprocessing
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import botocore.auth
import pytest

from components.errors import BadInputError, ExitCode, PipelineError
from components.storage.config import StoreConfig
from components.storage.s3 import S3Store
from components.storage.store import default_cache, fetch, open_store

MIB = 1 << 20


def _same_files(one: Path, two: Path) -> bool:
    names = [sorted(p.relative_to(top).as_posix() for p in top.rglob("*") if p.is_file()) for top in (one, two)]
    names = [[name for name in found if name != "manifest.json"] for found in names]
    return names[0] == names[1] and all((one / name).read_bytes() == (two / name).read_bytes() for name in names[0])


def _quick(uri: str, **options: object) -> S3Store:
    """A store that gives up soon."""
    return S3Store(StoreConfig(uri=uri, attempts=2, **options))


# ---- what a person must mend, each one sentence


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({"AWS_ACCESS_KEY_ID": "unknown"}, "does not know this access key; check AWS_ACCESS_KEY_ID"),
        ({"AWS_SECRET_ACCESS_KEY": "wrong"}, "secret key is wrong; check AWS_SECRET_ACCESS_KEY"),
        ({"AWS_ACCESS_KEY_ID": None, "AWS_SECRET_ACCESS_KEY": None}, "no complete credentials were found"),
        ({"AWS_SECRET_ACCESS_KEY": None}, "no complete credentials were found"),
        ({"AWS_PROFILE": "nowhere"}, "credentials could not be had .*nowhere"),
    ],
)
def test_wrong_and_missing_keys_are_told_apart(
    server, prefix: str, make_folder, monkeypatch, tmp_path, environment: dict[str, str | None], says: str
) -> None:
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name, value in environment.items():
        monkeypatch.delenv(name) if value is None else monkeypatch.setenv(name, value)
    for act in (
        lambda store: store.check_writable(),
        lambda store: store.find("models/abc"),
        lambda store: store.put(make_folder("source", a="1"), "models/abc", provenance={}),
    ):
        with pytest.raises(BadInputError, match=says) as caught:
            act(_quick(f"s3://artifacts/{prefix}"))
        assert "\n" not in str(caught.value)


def test_an_anonymous_request_is_refused_as_a_missing_right(server, prefix: str) -> None:
    store = _quick(f"s3://artifacts/{prefix}")
    # An unsigned request, as one without credentials would be sent by other tools.
    store._client.meta.events.register("choose-signer.s3.*", lambda **_: botocore.UNSIGNED)
    with pytest.raises(BadInputError, match="access is denied"):
        store.find("models/abc")


def test_a_missing_bucket_is_told(server, make_folder) -> None:
    for act in (
        lambda store: store.check_writable(),
        lambda store: store.find("models/abc"),
        lambda store: store.keys(),
        lambda store: store.put(make_folder("source", a="1"), "models/abc", provenance={}),
    ):
        with pytest.raises(BadInputError, match="bucket does not exist; create it"):
            act(_quick("s3://no-such-bucket/x"))


def test_a_clock_that_is_off_is_told(server, prefix: str, monkeypatch) -> None:
    now = botocore.auth.get_current_datetime
    monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda **options: now(**options) - timedelta(hours=1))
    with pytest.raises(BadInputError, match="clock is .*off the store's"):
        _quick(f"s3://artifacts/{prefix}").find("models/abc")


def test_an_endpoint_that_is_down_is_told_within_seconds_with_its_address(server, monkeypatch) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{probe.getsockname()[1]}"
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        began = time.monotonic()
        with pytest.raises(BadInputError, match=rf"{address} does not answer.*AWS_ENDPOINT_URL"):
            open_store("s3://artifacts/x").check_writable()
        assert time.monotonic() - began < 20
        with pytest.raises(PipelineError, match="does not answer") as caught:
            _quick("s3://artifacts/x").find("models/abc")
        assert caught.value.exit_code == ExitCode.ERROR


def test_a_malformed_endpoint_is_told(monkeypatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "host only")
    with pytest.raises(BadInputError, match="AWS_ENDPOINT_URL"):
        open_store("s3://artifacts/x").find("models/abc")


def test_an_untrusted_certificate_is_told_and_a_ca_bundle_mends_it(server, prefix: str, make_folder, tmp_path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("openssl is not installed")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with _proxy(server.endpoint, tls=context) as address:
        options = {"endpoint_url": address.replace("http:", "https:")}
        with pytest.raises(BadInputError, match=r"not trusted; set store\.ca_bundle"):
            _quick(f"s3://artifacts/{prefix}", **options).find("models/abc")
        with pytest.raises(BadInputError, match="is no file"):
            _quick(f"s3://artifacts/{prefix}", ca_bundle=str(tmp_path / "none"), **options).find("models/abc")
        store = _quick(f"s3://artifacts/{prefix}", ca_bundle=str(certificate), **options)
        reference = store.put(make_folder("source", a="1", large=6 * MIB), "models/abc", provenance={})
    fetch(reference)


# ---- connections and processes that die


@contextlib.contextmanager
def _proxy(endpoint: str, *, cut_after: list[int] | None = None, tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """A TCP proxy. Each number in `cut_after` cuts one connection after that many bytes from the server."""
    host, _, port = endpoint.removeprefix("http://").partition(":")
    listener = socket.create_server(("127.0.0.1", 0))
    cuts = cut_after if cut_after is not None else []

    def pump(source: socket.socket, sink: socket.socket, limit: int | None) -> None:
        moved = 0
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                moved += len(data)
                if limit is not None and moved > limit:
                    break
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def serve() -> None:
        while True:
            try:
                near, _ = listener.accept()
            except OSError:
                return
            try:
                near = tls.wrap_socket(near, server_side=True) if tls else near
            except (ssl.SSLError, OSError):
                continue
            far = socket.create_connection((host, int(port)))
            limit = cuts.pop() if cuts else None
            threading.Thread(target=pump, args=(near, far, None), daemon=True).start()
            threading.Thread(target=pump, args=(far, near, limit), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.close()


def test_connections_cut_in_the_middle_of_a_file_are_gone_on_with(store, server, make_folder) -> None:
    source = make_folder("source", large=12 * MIB, small="1")
    reference = store.put(source, "models/abc", provenance={})
    cuts = [3 * MIB, 2 * MIB, 100_000]
    with _proxy(server.endpoint, cut_after=cuts) as address:
        config = StoreConfig(uri=store.uri, endpoint_url=address, part_size_mib=5)
        assert _same_files(source, fetch(reference, config=config))
    assert cuts == []


def _fetch_slowly(reference: str, started) -> None:
    """In a process of its own: download, slowed so that the parent can kill it in the middle."""
    write = os.pwrite

    def slow(descriptor: int, content: bytes, offset: int) -> int:
        time.sleep(0.05)
        started.release()
        return write(descriptor, content, offset)

    os.pwrite = slow
    fetch(reference, config=StoreConfig(part_size_mib=5, concurrency=2))


@pytest.mark.slow
def test_kill_9_in_the_middle_of_a_download_then_the_next_goes_on(store, make_folder, monkeypatch) -> None:
    source = make_folder("source", large=48 * MIB, **{f"small{number}": f"{number}" for number in range(20)})
    reference = store.put(source, "models/abc", provenance={})
    context = multiprocessing.get_context("spawn")
    started = context.Semaphore(0)
    client = context.Process(target=_fetch_slowly, args=(str(reference), started))
    client.start()
    for _ in range(24):
        assert started.acquire(timeout=60)
    os.kill(client.pid, signal.SIGKILL)
    client.join()
    assert not (default_cache() / reference.digest).exists()

    write, written = os.pwrite, []
    monkeypatch.setattr(os, "pwrite", lambda *arguments: (written.append(len(arguments[1])), write(*arguments))[1])
    folder = fetch(reference, config=StoreConfig(part_size_mib=5, concurrency=2))
    assert _same_files(source, folder)
    # 24 MiB had come in parts of 5 MiB by two workers: at least 3 whole parts need not come again.
    assert sum(written) <= 48 * MIB - 3 * 5 * MIB
    assert not (default_cache() / f"{reference.digest}.partial").exists()


@pytest.mark.slow
def test_kill_9_of_the_client_in_the_middle_of_an_upload_then_the_next_goes_on(store, make_folder) -> None:
    source = make_folder("source", large=24 * MIB, **{f"small{number}": f"{number}" for number in range(50)})
    code = (
        "import sys, os\nfrom pathlib import Path\nfrom components.storage import s3_transfer\n"
        "from components.storage.store import open_store\n"
        "send, sent = s3_transfer._put_small, []\n"
        "def die(*a):\n    send(*a)\n    sent.append(1)\n    os.kill(os.getpid(), 9) if len(sent) > 25 else None\n"
        "s3_transfer._put_small = die\n"
        "open_store(sys.argv[1]).put(Path(sys.argv[2]), 'models/abc', provenance={})\n"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", code, store.uri, str(source)], cwd=root, timeout=120)
    assert done.returncode == -signal.SIGKILL
    assert store.find("models/abc") is None
    assert _same_files(source, fetch(store.put(source, "models/abc", provenance={})))


@pytest.mark.slow
def test_kill_9_of_the_server_in_the_middle_of_an_upload_loses_nothing(own_server, make_folder) -> None:
    source = make_folder("source", large=64 * MIB, **{f"small{number}": f"{number}" for number in range(50)})
    store = S3Store(StoreConfig(uri="s3://artifacts/x", part_size_mib=5, concurrency=4))

    def kill_and_start() -> None:
        # Not before something of the large file is there.
        while not own_server.client().list_multipart_uploads(Bucket="artifacts").get("Uploads"):
            time.sleep(0.02)
        own_server.kill()
        time.sleep(1)
        own_server.start()

    timer = threading.Thread(target=kill_and_start)
    timer.start()
    try:
        store.put(source, "models/abc", provenance={})
    except PipelineError:
        assert store.find("models/abc") is None
    timer.join()
    reference = store.put(source, "models/abc", provenance={})
    assert _same_files(source, fetch(reference))


def test_a_server_that_stays_down_ends_the_upload_with_one_sentence_and_a_retry_succeeds(
    own_server, make_folder
) -> None:
    source = make_folder("source", large=12 * MIB, small="1")
    own_server.kill()
    with pytest.raises(PipelineError, match=r"does not answer .*run again"):
        _quick("s3://artifacts/x").put(source, "models/abc", provenance={})
    own_server.start()
    assert _same_files(source, fetch(_quick("s3://artifacts/x").put(source, "models/abc", provenance={})))


def _write(uri: str, folder: Path, gate, answers) -> None:
    gate.wait()
    try:
        answers.put(("won", str(open_store(uri).put(folder, "models/race", provenance={}))))
    except PipelineError as error:
        answers.put(("told", str(error)))


@pytest.mark.slow
@pytest.mark.parametrize("same", [True, False])
def test_of_concurrent_writers_one_wins_and_the_others_find_it_or_are_told(store, make_folder, same: bool) -> None:
    context = multiprocessing.get_context("spawn")
    gate, answers = context.Barrier(3), context.Queue()
    writers = []
    for number in range(3):
        content = {f"f{name}": "same" if same else f"{number}" for name in range(30)}
        folder = make_folder(f"source{number}", **content, large=2 * MIB)
        writers.append(context.Process(target=_write, args=(store.uri, folder, gate, answers)))
    for writer in writers:
        writer.start()
    results = sorted(answers.get(timeout=120) for _ in writers)
    for writer in writers:
        writer.join()
    assert [outcome for outcome, _ in results] == (["won"] * 3 if same else ["told", "told", "won"])
    assert all("already holds other content" in text for outcome, text in results if outcome == "told")
    # The winner's files are the winner's, whatever the others had under way.
    store.verify(store.find("models/race"))
    assert fetch(results[-1][1]).is_dir()


# ---- many and large


def test_two_hundred_small_files_go_up_and_down(store, make_folder) -> None:
    source = make_folder("source", **{f"f{number:03}": 20_000 for number in range(200)})
    assert _same_files(source, fetch(store.put(source, "models/many", provenance={})))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_ten_thousand_small_files_go_up_and_down(store, make_folder) -> None:
    source = make_folder("source", **{f"d{number % 100}__f{number:05}": 2_000 for number in range(10_000)})
    reference = store.put(source, "models/many", provenance={})
    assert _same_files(source, fetch(reference))
    assert len(store.read_manifest(reference).files) == 10_000
    assert store.put(source, "models/many", provenance={}) == reference
    store.delete("models/many")
    assert store.keys() == []


@pytest.mark.slow
def test_a_file_of_one_gib_goes_up_and_down(server, prefix: str, make_folder) -> None:
    source = make_folder("source", model=1024 * MIB)
    store = open_store(f"s3://artifacts/{prefix}")
    reference = store.put(source, "models/large", provenance={})
    assert _same_files(source, fetch(reference))
    store.delete("models/large")

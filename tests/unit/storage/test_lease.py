"""Leases on a folder: one owner, renewed while it lives, taken over when it is dead."""

import json
import multiprocessing
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from components.errors import PipelineError
from components.storage import lease as lease_module
from components.storage.lease import held, hold
from components.storage.store import open_store


@pytest.fixture
def store(tmp_path: Path):
    return open_store(str(tmp_path))


def _make_foreign(store, name: str, **facts: object) -> None:
    """Let the lease look as if another machine had written it."""
    note = store.read_note(f"leases/{name}.lease")
    content = json.dumps({**json.loads(note.content), "place": "another machine", **facts}).encode()
    store.write_note(f"leases/{name}.lease", content, replaces=note.tag)


def test_a_second_owner_is_refused_and_told_who_the_first_is(store) -> None:
    with hold(store, "training/abc", what="run blue"):
        assert held(store, "training/abc")
        refused = pytest.raises(PipelineError, match=rf"in use by run blue on .*process {os.getpid()}")
        with refused, hold(store, "training/abc", what="run red"):
            raise AssertionError("two owners")
    assert not held(store, "training/abc")
    with hold(store, "training/abc", what="run red") as mine:
        mine.check()


def test_other_names_are_free(store) -> None:
    with (
        hold(store, "training/abc", what="x"),
        hold(store, "training/abc/deeper", what="y"),
        hold(store, "b", what="z"),
    ):
        assert held(store, "training/abc/deeper")


def test_the_waiting_one_gets_it_when_the_first_gives_it_back(store) -> None:
    order: list[str] = []

    def first() -> None:
        with hold(store, "x", what="first"):
            started.set()
            time.sleep(0.5)
            order.append("first ends")

    started = threading.Event()
    thread = threading.Thread(target=first)
    thread.start()
    started.wait()
    with hold(store, "x", what="second", wait_s=30):
        order.append("second begins")
    thread.join()
    assert order == ["first ends", "second begins"]


def test_a_heartbeat_keeps_it_beyond_its_time(store) -> None:
    with hold(store, "x", what="first", ttl_s=0.6) as lease:
        time.sleep(1.5)
        lease.check()
        with pytest.raises(PipelineError, match="in use"), hold(store, "x", what="second", ttl_s=0.6):
            pass


def test_a_silent_owner_elsewhere_is_replaced_only_after_its_time(store) -> None:
    silent = lease_module.Lease(store, "x", what="silent", ttl_s=1.0)
    silent._write(None)
    _make_foreign(store, "x")
    with pytest.raises(PipelineError, match="silent"), hold(store, "x", what="second"):
        pass
    with hold(store, "x", what="second", wait_s=10):
        silent._renewed = 0.0
        with pytest.raises(PipelineError, match="taken over by another run"):
            silent.check()


def _hold_and_hang(uri: str, answers) -> None:
    with hold(open_store(uri), "x", what="killed", ttl_s=600):
        answers.put("held")
        time.sleep(600)


def test_an_owner_killed_on_this_machine_is_replaced_at_once(store) -> None:
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    owner = context.Process(target=_hold_and_hang, args=(store.uri, answers))
    owner.start()
    assert answers.get(timeout=60) == "held"
    with pytest.raises(PipelineError, match="in use by killed"), hold(store, "x", what="second"):
        pass
    os.kill(owner.pid, signal.SIGKILL)
    while Path(f"/proc/{owner.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.01)
    with hold(store, "x", what="second"):
        pass
    owner.join()


def test_a_renewal_whose_answer_was_lost_is_recognised_as_our_own(store) -> None:
    with hold(store, "x", what="mine", ttl_s=30) as lease:
        tag = lease._tag
        lease._renew()
        lease._tag = tag
        lease._renewed = 0.0
        lease.check()
        lease.check()


def test_many_at_once_have_one_owner(store) -> None:
    owners: list[int] = []
    most: list[int] = []

    def take(number: int) -> None:
        with hold(store, "x", what=str(number), wait_s=60):
            owners.append(number)
            most.append(len(owners))
            time.sleep(0.01)
            owners.remove(number)

    threads = [threading.Thread(target=take, args=(number,)) for number in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 5

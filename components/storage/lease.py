"""One owner of a prefix at a time: a lease kept by conditional writes, renewed by a heartbeat, taken over when expired.

Held by training (a second run on the same prefix waits or is refused) and by the S3 store while it writes an artifact.
Works on any `ArtifactStore`; ages are by the store's clock, so machines may disagree about the time. A dead owner on
this same machine is replaced at once, one elsewhere when its lease has expired. Limits: a lease is advice; what must
not happen twice is checked (`Lease.check`) just before it is done.
"""

import json
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from components.errors import PipelineError
from components.storage.store import ArtifactStore, Note, NoteChangedError

DEFAULT_TTL_S = 60.0
_BEATS_A_TTL = 3
_POLL_S = 1.0
log = logging.getLogger("grpo")


class Lease:
    """A held lease. `hold` makes it; its owner calls `check` before anything that must have one writer."""

    def __init__(self, store: ArtifactStore, name: str, *, what: str, ttl_s: float) -> None:
        self._store = store
        self._name = f"leases/{name}.lease"
        self._ttl_s = ttl_s
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._tag: str | None = None
        self._beat = 0
        self._renewed = 0.0
        self._lost = False
        self._facts = {"owner": secrets.token_hex(16), "what": what, "host": socket.gethostname(), **_process()}

    def check(self) -> None:
        """Make sure that the lease is still ours, renewing it when a heartbeat is overdue.

        Raises:
            PipelineError: when another took it over, or the store cannot be reached to tell.
        """
        with self._lock:
            if not self._lost and time.monotonic() - self._renewed > self._ttl_s / _BEATS_A_TTL:
                self._renew()
            if self._lost:
                raise PipelineError(
                    f"the lease {self._name} in {self._store.uri} was taken over by another run, because this one did "
                    f"not renew it for {self._ttl_s:.0f} s; stop one of the two, then run again"
                )

    def acquire(self) -> str | None:
        """Try once to become the owner; None when it worked, else who owns it, in words."""
        note = self._store.read_note(self._name)
        if note is not None and not _is_free(note):
            return _owner_in_words(note)
        try:
            self._write(note.tag if note else None)
        except NoteChangedError:
            note = self._store.read_note(self._name)
            return _owner_in_words(note) if note else "another run that just ended"
        threading.Thread(target=self._keep, name=f"lease {self._name}", daemon=True).start()
        return None

    def release(self) -> None:
        """Give the lease back."""
        self._stop.set()
        with self._lock:
            if self._tag is not None and not self._lost:
                try:
                    self._store.delete_note(self._name, tag=self._tag)
                except (NoteChangedError, PipelineError) as error:
                    # Not worth failing finished work for: it expires by itself.
                    log.warning(
                        "lease %s was not given back (%s); it expires in %.0f s", self._name, error, self._ttl_s
                    )

    def _keep(self) -> None:
        while not self._stop.wait(self._ttl_s / _BEATS_A_TTL):
            with self._lock:
                if self._lost or self._stop.is_set():
                    return
                try:
                    self._renew()
                except PipelineError:
                    # The store does not answer: tried again at the next beat, and `check` tells.
                    continue

    def _renew(self) -> None:
        try:
            self._write(self._tag)
        except NoteChangedError:
            # It may have been an earlier renewal of ours, whose answer was lost.
            note = self._store.read_note(self._name)
            if note is not None and json.loads(note.content)["owner"] == self._facts["owner"]:
                self._tag = note.tag
                self._renewed = time.monotonic()
            else:
                self._lost = True

    def _write(self, replaces: str | None) -> None:
        self._beat += 1
        content = json.dumps({**self._facts, "ttl_s": self._ttl_s, "beat": self._beat}, sort_keys=True).encode()
        self._tag = self._store.write_note(self._name, content, replaces=replaces)
        self._renewed = time.monotonic()


@contextmanager
def hold(
    store: ArtifactStore, name: str, *, what: str, ttl_s: float = DEFAULT_TTL_S, wait_s: float = 0.0
) -> Iterator[Lease]:
    """Be the one owner of a name while the body runs.

    Args:
        store: where the lease is kept.
        name: what is owned, such as `training/<hash>`; of the form of a key.
        what: what the owner does, for the message another run gets.
        ttl_s: seconds without a heartbeat after which another may take over. S3 tells time in whole seconds: give it
            at least 5.
        wait_s: seconds to wait for the present owner to end; 0 refuses at once.

    Raises:
        PipelineError: when another owns it; says who, and what to do.
    """
    lease = Lease(store, name, what=what, ttl_s=ttl_s)
    deadline = time.monotonic() + wait_s
    told = False
    while (owner := lease.acquire()) is not None:
        if time.monotonic() >= deadline:
            raise PipelineError(
                f"{store.uri}/{name} is in use by {owner}; wait for it to end, or stop it (a dead one is replaced "
                f"after {ttl_s:.0f} s)"
            )
        if not told:
            log.info("%s/%s is in use by %s; waiting for it for at most %.0f s", store.uri, name, owner, wait_s)
            told = True
        time.sleep(min(_POLL_S, max(0.0, deadline - time.monotonic())))
    try:
        yield lease
    finally:
        lease.release()


def held(store: ArtifactStore, name: str) -> bool:
    """Whether somebody alive owns a name."""
    note = store.read_note(f"leases/{name}.lease")
    return note is not None and not _is_free(note)


def _is_free(note: Note) -> bool:
    facts = json.loads(note.content)
    return note.age_s > float(facts["ttl_s"]) or _is_dead_here(facts)


def _is_dead_here(facts: dict[str, Any]) -> bool:
    """Whether the owner was a process among those this one can see, and is gone."""
    mine = _process()
    if mine["place"] is None or facts["place"] != mine["place"]:
        return False
    return _started(int(facts["pid"])) != facts["started"]


def _process() -> dict[str, Any]:
    """This process, told so that another on the same machine can see whether it lives."""
    return {"place": _place(), "pid": os.getpid(), "started": _started(os.getpid())}


def _place() -> str | None:
    """This boot of this machine and this set of process numbers (a container has its own); None where unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return None


def _started(pid: int) -> str | None:
    """When a process started, in clock ticks since boot; None when there is none."""
    try:
        # The command's name is in parentheses and may hold anything; the first field after it is the state.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else fields[19]


def _owner_in_words(note: Note) -> str:
    facts = json.loads(note.content)
    return f"{facts['what']} on {facts['host']} (process {facts['pid']}, last heard of {note.age_s:.0f} s ago)"

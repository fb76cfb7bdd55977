"""Ending a process with everything it started. Used by the guard for its worker, and by the worker for itself."""

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

PROC = Path("/proc")
ROUNDS = 20


def kill_tree(process: "subprocess.Popen[bytes]", marker: str) -> None:
    """Kill a process, its process group and its descendants, and wait for it.

    Args:
        process: started with `start_new_session=True`, so that its pid is its group.
        marker: as for `kill_descendants`.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    kill_descendants(process.pid, marker)
    process.wait()


def kill_descendants(root: int, marker: str) -> None:
    """Kill all descendants of a process wherever they have gone (Linux; elsewhere nothing).

    They are found by parentage and by an environment variable they inherit, so one that made its own session and
    outlived its parent is found too; one that also replaced its whole environment is not. Repeats until none is left,
    since a fork bomb makes new ones meanwhile. Never kills the caller.

    Args:
        root: process id.
        marker: `NAME=value` that was put in the environment of `root` and of no other process.
    """
    for _ in range(ROUNDS):
        found = _descendants(root, marker.encode())
        if not found:
            break
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def _descendants(root: int, marker: bytes) -> set[int]:
    """Living processes below `root`, or with the marker in their environment, but for this one."""
    if not PROC.is_dir():
        return set()
    parents: dict[int, int] = {}
    found: set[int] = set()
    for entry in PROC.iterdir():
        if not entry.name.isdigit():
            continue
        pid = int(entry.name)
        with contextlib.suppress(OSError, ValueError, IndexError):
            # After the command name in brackets come state and parent; Z is dead already.
            state, parent = (entry / "stat").read_text().rsplit(")", 1)[1].split()[:2]
            if state in "ZX":
                continue
            parents[pid] = int(parent)
            if marker in (entry / "environ").read_bytes().split(b"\0"):
                found.add(pid)
    grown = True
    while grown:
        below = {pid for pid, parent in parents.items() if parent in found or parent == root} - found
        grown = bool(below)
        found |= below
    return found - {os.getpid()}

"""Ending a process with everything it started. Used by the guard for its worker."""

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

PROC = Path("/proc")
ROUNDS = 20


def kill_tree(process: "subprocess.Popen[bytes]", marker: str) -> None:
    """Kill a process, its process group and, on Linux, all its descendants wherever they have gone.

    Descendants are found by parentage and by an environment variable they inherit, so one that made its own session
    and outlived its parent is found too; one that also replaced its whole environment is not. Repeats until none is
    left, since a fork bomb makes new ones meanwhile.

    Args:
        process: started with `start_new_session=True`, so that its pid is its group.
        marker: `NAME=value` that was put in its environment and in no other process's.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    for _ in range(ROUNDS):
        found = _descendants(process.pid, marker.encode())
        if not found:
            break
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    process.wait()


def _descendants(root: int, marker: bytes) -> set[int]:
    """Living processes below `root`, or with the marker in their environment; empty where there is no /proc."""
    if not PROC.is_dir():
        return set()
    parents: dict[int, int] = {}
    marked: set[int] = set()
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
                marked.add(pid)
    found = set(marked)
    grown = True
    while grown:
        below = {pid for pid, parent in parents.items() if parent in found or parent == root} - found
        grown = bool(below)
        found |= below
    return found - {os.getpid(), root} if root not in parents else found - {os.getpid()}

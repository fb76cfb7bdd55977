# ruff: noqa: PTH101, PTH102, PTH103, PTH106, PTH112, PTH114, PTH115, PTH120, PTH123, PTH211, S102, S103, S108, S307
# ruff: noqa: S302, SIM105, BLE001
"""What runs on the inside of the sandbox; `sandbox.py` starts it as `python -I -S` for every program.

It isolates itself, runs each test in a process of its own and reports what came of it. The order matters: namespaces,
an own root with nothing in it but the interpreter (read-only), no privileges, then one fork for each test with its
limits. Every process is below the init of a process namespace, and dies with it. What a program can still do is in the
docstring of `sandbox.py`.

Few imports, since they are most of what a program costs (no json, contextlib, typing, pathlib, signal). The request
comes as marshal, from our own process; the reply goes as lines and bytes, which cannot hurt who reads them:
`refused <why>`, or `isolated <net> <user>` and for each test `<status> <number> <length>` and so many bytes.
"""

from __future__ import annotations

import ctypes
import io
import marshal
import os
import resource
import select
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SIGKILL, SIGXCPU = 9, 24
NEWNS, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET = 0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
SPACES = NEWNS | NEWUTS | NEWIPC | NEWPID | NEWNET
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE, MS_RELATIME = (
    1, 2, 4, 8, 32, 4096, 16384, 1 << 18, 1 << 21,
)  # fmt: skip
MNT_DETACH = 2
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 1, 4, 24, 38
SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
NOBODY = 65534
OUTPUT_BYTES = 65_536

libc = ctypes.CDLL(None, use_errno=True)


def check(result: int, what: str) -> None:
    """Raise OSError naming the call that failed."""
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    """mount(2)."""
    encode = os.fsencode
    arguments = [None if part is None else encode(part) for part in (source, target, kind)]
    check(libc.mount(*arguments, ctypes.c_ulong(flags), None if data is None else encode(data)), f"mount {target}")


def become_nobody() -> None:
    """Give up root's identity for good."""
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)


def own_user_namespace(flags: int, proc: int) -> None:
    """unshare(2) with a user namespace in which only this user exists, and no further one may be made."""
    uid, gid = os.getuid(), os.getgid()
    check(libc.unshare(NEWUSER | flags), "unshare a user namespace")
    put(proc, "self/setgroups", "deny")
    put(proc, "self/uid_map", f"{uid} {uid} 1")
    put(proc, "self/gid_map", f"{gid} {gid} 1")
    try:
        put(proc, "sys/user/max_user_namespaces", "0")
    except OSError:
        # /proc/sys is read-only in most containers. It only shuts off a part of the kernel that has had faults.
        pass


def put(proc: int, name: str, text: str) -> None:
    """Write to a file below /proc."""
    file = os.open(name, os.O_WRONLY, dir_fd=proc)
    try:
        os.write(file, text.encode())
    finally:
        os.close(file)


def isolate(readable: list[str], disk_mb: int) -> dict[str, str]:
    """Leave the machine's network, processes, users and files."""
    libc.prctl(PR_SET_PDEATHSIG, SIGKILL)
    proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
    as_root = os.geteuid() == 0 and libc.unshare(SPACES) == 0
    if not as_root:
        if os.geteuid() == 0:
            become_nobody()
            # Changing user made this process undumpable, and its /proc files root's.
            libc.prctl(PR_SET_DUMPABLE, 1)
            libc.prctl(PR_SET_PDEATHSIG, SIGKILL)
        own_user_namespace(SPACES, proc)
    networks = os.readlink("self/ns/net", dir_fd=proc)
    own_root(readable, disk_mb)
    if as_root:
        become_nobody()
        libc.prctl(PR_SET_DUMPABLE, 1)
        libc.prctl(PR_SET_PDEATHSIG, SIGKILL)
        own_user_namespace(0, proc)
    users = os.readlink("self/ns/user", dir_fd=proc)
    os.close(proc)
    for capability in range(64):
        libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    check(libc.capset(header, (ctypes.c_uint32 * 6)()), "drop capabilities")
    check(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no new privileges")
    return {"net": networks, "user": users}


def own_root(readable: list[str], disk_mb: int) -> None:
    """A root file system of a few megabytes in memory, with the interpreter and the system's libraries read-only."""
    mount(None, "/", None, MS_REC | MS_PRIVATE)
    mount("sandbox", "/tmp", "tmpfs", MS_NOSUID | MS_NODEV, f"size={disk_mb}m,nr_inodes=4096,mode=0755")
    os.mkdir("/tmp/old")
    call = SYS_PIVOT_ROOT.get(os.uname().machine)
    if call is None:
        raise OSError(0, f"unknown machine type {os.uname().machine}")
    check(libc.syscall(ctypes.c_long(call), b"/tmp", b"/tmp/old"), "pivot_root")
    os.chdir("/")
    for path in readable:
        old = "/old" + path
        if os.path.islink(old):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            os.symlink(os.readlink(old), path)
        elif os.path.isdir(old):
            os.makedirs(path, exist_ok=True)
            mount(old, path, None, MS_BIND | MS_REC)
            # statvfs and mount(2) name these flags alike but for relatime; what the source has has to stay.
            flags = os.statvfs(path).f_flag & (MS_NOSUID | MS_NODEV | MS_NOEXEC | 1024 | 2048)
            relatime = MS_RELATIME if os.statvfs(path).f_flag & 4096 else 0
            mount(None, path, None, MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | flags | relatime)
    os.mkdir("/dev")
    for name in ("null", "zero", "random", "urandom"):
        with open(f"/dev/{name}", "w"):
            pass
        mount(f"/old/dev/{name}", f"/dev/{name}", None, MS_BIND)
    os.mkdir("/tmp")
    os.chmod("/tmp", 0o777)
    check(libc.umount2(b"/old", MNT_DETACH), "umount the old root")
    os.rmdir("/old")
    os.chdir("/tmp")


def limit(limits: dict[str, Any]) -> None:
    """The limits of one test process."""
    mebibyte = 1024 * 1024
    seconds = max(1, int(limits["cpu_seconds"] + 0.999))
    for name, value in (
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_AS, limits["memory_mb"] * mebibyte),
        (resource.RLIMIT_NPROC, limits["processes"]),
        (resource.RLIMIT_FSIZE, limits["file_mb"] * mebibyte),
        (resource.RLIMIT_NOFILE, limits["open_files"]),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(name, (value, value))


def run_test(code: str, test: dict[str, str], results: int) -> int:
    """In the test's own process: run the program, then what the test asks, and write what came of it."""
    output = os.open("/dev/null", os.O_WRONLY)
    given = test.get("input")
    reading, writing = os.pipe()
    if given is not None:
        output = results
        if os.fork() == 0:
            os.close(reading)
            try:
                os.write(writing, given.encode())
            finally:
                os._exit(0)
    os.close(writing)
    os.dup2(reading, 0)
    os.dup2(output, 1)
    os.dup2(os.open("/dev/null", os.O_WRONLY), 2)
    sys.stdin = io.TextIOWrapper(io.FileIO(0), encoding="utf-8")
    sys.stdout = io.TextIOWrapper(io.FileIO(1, "w"), encoding="utf-8", errors="replace")
    sys.argv = ["program.py"]
    names = {"__name__": "__main__" if given is not None else "program", "__builtins__": __builtins__}
    try:
        exec(compile(code, "program.py", "exec"), names)
        if "call" in test:
            os.write(results, repr(eval(compile(test["call"], "test", "eval"), names))[:OUTPUT_BYTES].encode())
        elif "check" in test:
            exec(compile(test["check"], "test", "exec"), names)
            os.write(results, b"passed")
    except SystemExit as error:
        sys.stdout.flush()
        return 0 if given is not None and error.code in (None, 0) else 3
    except BaseException as error:
        if given is None:
            os.write(results, f"{type(error).__name__}: {error}"[:300].encode(errors="replace"))
        return 3
    sys.stdout.flush()
    return 0


def supervise(code: str, test: dict[str, str], limits: dict[str, Any]) -> tuple[str, int, bytes]:
    """As init of the process namespace: run one test, wait so long, and leave nothing of it."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 4
        try:
            os.close(reading)
            os.closerange(3, writing)
            limit(limits)
            status = run_test(code, test, writing)
        finally:
            os._exit(status)
    os.close(writing)
    end = time.monotonic() + limits["wall_seconds"]
    said = b""
    ended = None
    while ended is None and time.monotonic() < end:
        ready, _, _ = select.select([reading], [], [], min(0.02, max(0.0, end - time.monotonic())))
        if ready:
            part = os.read(reading, OUTPUT_BYTES)
            said = (said + part)[:OUTPUT_BYTES]
            if not part:
                time.sleep(0.001)
        done, status = os.waitpid(pid, os.WNOHANG)
        if done == pid:
            ended = status
    # Everything in the namespace but this process.
    try:
        os.kill(-1, SIGKILL)
    except ProcessLookupError:
        pass
    while True:
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            break
    while select.select([reading], [], [], 0)[0]:
        part = os.read(reading, OUTPUT_BYTES)
        if not part:
            break
        said = (said + part)[:OUTPUT_BYTES]
    os.close(reading)
    if ended is None:
        return "timeout", 0, said
    if os.WIFSIGNALED(ended):
        return "killed", os.WTERMSIG(ended), said
    code_out = os.WEXITSTATUS(ended)
    return "done" if code_out == 0 else "error", code_out, said


def main() -> None:
    """Serve one request."""
    request = marshal.loads(sys.stdin.buffer.read())
    reply = os.dup(1)
    try:
        spaces = isolate(request["readable"], request["limits"]["disk_mb"])
    except OSError as error:
        os.write(reply, f"refused {error}\n".encode())
        return
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
        return
    libc.prctl(PR_SET_PDEATHSIG, SIGKILL)
    libc.prctl(PR_SET_DUMPABLE, 0)
    os.write(reply, f"isolated {spaces['net']} {spaces['user']}\n".encode())
    end = time.monotonic() + request["all_seconds"]
    for test in request["tests"]:
        if time.monotonic() > end:
            break
        status, number, said = supervise(request["code"], test, request["limits"])
        os.write(reply, f"{status} {number} {len(said)}\n".encode() + said)
        if status == "timeout" or number in (SIGXCPU, SIGKILL):
            break
    os._exit(0)


if __name__ == "__main__":
    main()

"""Row `store`: a large file and many small ones to an S3 server on loopback (SeaweedFS) and back.

Every run sends to an empty place and fetches into an empty folder. Ours hashes what it sends and verifies what comes
back; the peers do neither.
"""

import contextlib
import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from bench.inputs.made import aws
from bench.measuring import run_program
from bench.results import ROOT, Result
from bench.session import Plot, Row, Session, Side, base_environment, program, removed

sys.path.insert(0, str(ROOT / "tests"))
from servers import SeaweedServer  # type: ignore[import-not-found]


def run(session: Session) -> None:
    """Measure."""
    shapes = {
        "1 GiB": (1, session.size(1 << 30, 1 << 20)),
        "2,000 files": (session.size(2000, 20), 20_000),
    }
    with _server(session.scratch) as environment:
        for label, (count, size) in shapes.items():
            _both_ways(session, environment, label, count, size, pairs=3)
        for count in session.size((125, 500), (10,)):
            _both_ways(session, environment, f"{count} files", count, 20_000)


def asks(result: Result) -> None:
    """What was asked."""
    for label, limit in (("1 GiB", 1.0), ("2,000 files", 2.0)):
        for direction in ("up", "down"):
            for peer in ("aws", "boto3"):
                times = result.times(f"{label} {direction}", peer, "wall_s", inverse=True)
                result.ask(f"{label} {direction}: times as fast as {peer}", times, ">=", limit)


def _both_ways(
    session: Session, environment: dict[str, str], label: str, count: int, size: int, *, pairs: int | None = None
) -> None:
    source = session.scratch / "source"
    removed(source)()
    source.mkdir()
    for number in range(count):
        with (source / f"{number:05}").open("wb") as file:
            # In pieces: a child's peak memory is never below what this process had when it started the child.
            for start in range(0, size, 1 << 20):
                file.write(os.urandom(min(1 << 20, size - start)))
    down = session.scratch / "down"
    command = str(aws())
    copy = [command, "s3", "cp", "--recursive", "--quiet"]

    def sides(direction: str) -> dict[str, Side]:
        folder = source if direction == "up" else down
        there = "s3://artifacts/aws"
        commands = {
            "aws": [*copy, str(source), there] if direction == "up" else [*copy, there, str(down)],
            "boto3": program("peers/store_boto3.py", direction, folder, "boto3"),
            "ours": program("ours/store.py", direction, folder, "ours"),
        }
        return {
            name: Side(
                line,
                before=partial(_empty, environment, name) if direction == "up" else removed(down),
                environment=environment,
            )
            for name, line in commands.items()
        }

    growth = pairs is None
    numbers = count if count > 1 else None
    session.compare(f"{label} up", sides("up"), x=numbers, growth=growth, pairs=pairs)
    for name, side in sides("up").items():
        if not _filled(environment, name):  # taken up again after a stop: the server is a new one
            run_program(side.command, environment=base_environment() | environment)
    session.compare(f"{label} down", sides("down"), x=numbers, growth=growth, pairs=pairs)
    removed(source, down)()
    for name in ("aws", "boto3", "ours"):
        _empty(environment, name)


@contextlib.contextmanager
def _server(scratch: Path) -> Iterator[dict[str, str]]:
    folder = scratch / "server"
    folder.mkdir()
    server = SeaweedServer(folder)
    server.start()
    try:
        yield dict(server.environment)
    finally:
        server.stop()


def _bucket(environment: dict[str, str]) -> "object":
    import boto3

    return boto3.resource(
        "s3",
        endpoint_url=environment["AWS_ENDPOINT_URL"],
        aws_access_key_id=environment["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=environment["AWS_SECRET_ACCESS_KEY"],
        region_name=environment["AWS_DEFAULT_REGION"],
    ).Bucket("artifacts")


def _empty(environment: dict[str, str], prefix: str) -> None:
    _bucket(environment).objects.filter(Prefix=f"{prefix}/").delete()  # type: ignore[attr-defined]


def _filled(environment: dict[str, str], prefix: str) -> bool:
    return any(_bucket(environment).objects.filter(Prefix=f"{prefix}/").limit(1))  # type: ignore[attr-defined]


ROW = Row(
    name="store",
    work="a file of 1 GiB, and 2,000 files of 20 KB, to an S3 server and back, checksums verified",
    peer="aws s3 cp; boto3 upload_file and download_file from ten threads",
    ask="1 GiB: as fast or faster; 2,000 files: >= 2 x",
    run=run,
    asks=asks,
    plots=(Plot("wall_s", "Time to send and fetch files of 20 KB", "files", "seconds"),),
)

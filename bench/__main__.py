"""`python -m bench [NAME...]`: measure rows, then write README.md from the JSON. See bench/README.md.

Without a name every row that this machine can run is measured: those that need a GPU only with --gpu. A row that fails
is reported and the others still run; the exit code is then 1. Runs one thing at a time; refuses names it does not know.
"""

import argparse
import signal
import sys
import tempfile
import traceback
from pathlib import Path

from bench.measuring import ProgramError
from bench.profiling import NoProfilerError
from bench.rendering import render
from bench.results import RESULTS, ROOT, Result, gpu
from bench.rows import ROWS, Row
from bench.session import Session


def main(arguments: list[str] | None = None) -> int:
    """Measure, and render.

    Args:
        arguments: the command line's; None takes sys.argv.

    Returns:
        0, or 1 when a row failed, or 2 when the command line is wrong.
    """
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="rows to measure; none: all of them")
    parser.add_argument("--list", action="store_true", help="list the rows")
    parser.add_argument("--gpu", action="store_true", help="the rows that need a GPU, instead of the others")
    parser.add_argument("--render", action="store_true", help="only write README.md and the plots from the JSON")
    parser.add_argument("--tiny", action="store_true", help="next to no work: tries the machinery, keeps no results")
    parser.add_argument("--pairs", type=int, help="runs of each side (default: five, three where a run is long)")
    parser.add_argument("--profile", action="store_true", help="one more run of our side under py-spy")
    parser.add_argument("--go-on", action="store_true", help="keep runs of the same commit that are already there")
    options = parser.parse_args(arguments)
    # So that servers and scratch folders go when a measurement is stopped.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if options.list:
        for row in ROWS.values():
            print(f"{row.name:16} {'gpu ' if row.gpu else '    '}{row.work}")
        return 0
    if not options.render:
        unknown = [name for name in options.names if name not in ROWS]
        if unknown:
            print(f"bench: there is no row {unknown[0]!r}; rows: {', '.join(ROWS)}", file=sys.stderr)
            return 2
        if options.pairs is not None and options.pairs < 1:
            print(f"bench: --pairs {options.pairs}: write 1 or more", file=sys.stderr)
            return 2
        if options.gpu and gpu() is None:
            print("bench: --gpu: there is no GPU here (nvidia-smi lists none)", file=sys.stderr)
            return 2
    failed = []
    if not options.render:
        chosen = [ROWS[name] for name in options.names] or [row for row in ROWS.values() if row.gpu == options.gpu]
        failed = [row.name for row in chosen if not measure(row, options)]
    if not options.tiny:
        render(RESULTS, ROOT / "bench")
    if failed:
        print(f"bench: failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def measure(row: Row, options: argparse.Namespace) -> bool:
    """Measure one row.

    Args:
        row: which.
        options: of the command line.

    Returns:
        Whether it went through.
    """
    print(f"{row.name}: {row.work}", flush=True)
    if row.gpu and gpu() is None:
        print(f"bench: {row.name} needs a GPU and there is none here", file=sys.stderr)
        return False
    with tempfile.TemporaryDirectory(prefix=f"bench-{row.name}-") as scratch:
        folder = Path(scratch) / "results" if options.tiny else RESULTS
        result = Result(row.name, folder, size="tiny" if options.tiny else "full", keep=options.go_on)
        session = Session(result, Path(scratch), tiny=options.tiny, pairs=options.pairs, profiled=options.profile)
        try:
            row.run(session)
        except (ProgramError, NoProfilerError) as error:
            print(f"bench: {row.name}: {error}", file=sys.stderr)
            return False
        except Exception:  # noqa: BLE001 - one row's fault must not cost the others; it is printed and counted
            traceback.print_exc()
            return False
        finally:
            row.asks(result)
            result.save()
        result.data["complete"] = True
        result.save()
        for ask in result.data["asks"]:
            print(f"  {ask['what']}: {ask['value']} ({ask['sense']} {ask['limit']}: {ask['met']})", flush=True)
    return True


if __name__ == "__main__":
    sys.exit(main())

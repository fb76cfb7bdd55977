"""The process that compares LaTeX with math-verify; a script, started by `latex.py` and by nothing else.

Its own process because math-verify's time limits need signals, which only work in a main thread, and cannot interrupt
sympy's long integer powers. It imports sympy once and forks; the fork answers until a comparison uses up its CPU time
and the kernel ends it, and the next fork is ready at once. Reads one JSON list [gold, answer] a line; writes "1" for
equal, "0" for different, "stopped" for one that took too long. Imports nothing of this project. Ends with its input.
"""

import json
import logging
import os
import resource
import signal
import sys
import warnings
from collections.abc import Callable

CPU_SECONDS = 0.7
"""CPU time for one comparison."""
WALL_SECONDS = 30.0
"""Time on the clock for one comparison: wide, so that a busy machine does not change verdicts."""
MEMORY_BYTES = 3 << 30
WARM_UP = ((r"\sqrt{2}x", r"x\sqrt{2}"), (r"\{1,2\}", r"\{2,1\}"), ("4", r"\sqrt{16}"))
"""Comparisons made before the first request, for the imports and caches that it would otherwise pay for."""


def comparison() -> Callable[[str, str], bool]:
    """The function that compares two expressions."""
    from math_verify import LatexExtractionConfig, parse, verify

    config = [LatexExtractionConfig(boxed_match_priority=-1)]

    def read(text: str) -> list[object]:
        result = parse(
            f"${text}$",
            extraction_config=config,
            fallback_mode="no_fallback",
            extraction_mode="first_match",
            parsing_timeout=None,
        )
        return list(result)

    def equal(gold: str, answer: str) -> bool:
        left, right = read(gold), read(answer)
        return bool(left) and bool(right) and bool(verify(left, right, float_rounding=15, timeout_seconds=None))

    return equal


def serve(equal: Callable[[str, str], bool]) -> None:
    """Answer comparisons until the input ends; the kernel ends the process when one takes too long."""
    for line in sys.stdin:
        gold, answer = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
        signal.setitimer(signal.ITIMER_REAL, WALL_SECONDS)
        try:
            verdict = equal(gold, answer)
        except (MemoryError, RecursionError, ArithmeticError, ValueError, TypeError, AttributeError, LookupError):
            verdict = False
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        print("1" if verdict else "0", flush=True)


def main() -> None:
    """Import, warm up, and keep one fork answering."""
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    equal = comparison()
    for gold, answer in WARM_UP:
        equal(gold, answer)
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(MEMORY_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    print("ready", flush=True)
    while True:
        child = os.fork()
        if child == 0:
            serve(equal)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status == 0:
            return
        print("stopped", flush=True)


if __name__ == "__main__":
    main()

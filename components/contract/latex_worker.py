"""The process that compares LaTeX with math-verify; a script, started by `latex.py` and by nothing else.

Its own process because math-verify's time limits need signals, which only work in a main thread, and cannot interrupt
sympy's long integer powers: here the kernel ends the whole process when a comparison uses up its CPU time, and
`latex.py` starts a new one. It imports nothing of this project. Reads one JSON list [gold, answer] a line, writes "1"
or "0".
"""

import json
import logging
import resource
import signal
import sys
import warnings

CPU_SECONDS = 0.8
"""CPU time for one comparison."""
WALL_SECONDS = 30.0
"""Time on the clock for one comparison: wide, so that a busy machine does not change verdicts."""
MEMORY_BYTES = 3 << 30


def main() -> None:
    """Answer comparisons until the input ends."""
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    from math_verify import LatexExtractionConfig, parse, verify

    config = [LatexExtractionConfig(boxed_match_priority=-1)]
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(MEMORY_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))

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
        if not left or not right:
            return False
        return bool(verify(left, right, float_rounding=15, timeout_seconds=None))

    for gold, answer in ((r"\sqrt{2}x", r"x\sqrt{2}"), (r"\{1,2\}", r"\{2,1\}"), ("4", r"\sqrt{16}")):
        equal(gold, answer)  # imports and caches that the first comparison would pay for
    print("ready", flush=True)
    for line in sys.stdin:
        gold, answer = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
        signal.setitimer(signal.ITIMER_REAL, WALL_SECONDS)
        try:
            verdict = equal(gold, answer)
        except (
            MemoryError,
            RecursionError,
            ArithmeticError,
            ValueError,
            TypeError,
            AttributeError,
            NotImplementedError,
        ):
            verdict = False
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        print("1" if verdict else "0", flush=True)


if __name__ == "__main__":
    main()

r"""Compares LaTeX expressions that the number reader does not read: `\sqrt{16}`, `2\pi`, `\frac{\sqrt{3}}{2}`, `x^2+1`.

Called through `components.contract.answers`. What can be judged by the text is judged here: equal after dropping what
does not change the meaning, or refused (prose, several boxes, words that change a value, relations where a number is
asked for). The rest is asked of math-verify in a process of its own (`latex_worker.py`), within 0.7 s of CPU time; an
expression that takes longer equals nothing. Decimals are handed over as fractions, so no rounding makes two numbers
equal. Works in any thread, after a fork, and where the caller's own signals are in use.

Limits: expressions of more than 400 characters are compared as text only. Where math-verify is not installed a warning
is logged once and the text decides.
"""

import atexit
import importlib.util
import json
import logging
import os
import re
import selectors
import subprocess
import sys
import threading
from functools import lru_cache
from pathlib import Path

from components.contract.characters import plain_characters, without_end_tokens
from components.contract.words import AFTER_REFUSED, BEFORE_REFUSED, SCALES

log = logging.getLogger(__name__)

MAX_CHARACTERS = 400
_START_SECONDS = 120.0
_ANSWER_SECONDS = 60.0

_MARK = re.compile(r"[\\^_√π]|\d!|[A-Za-z]\(")
_SYMBOLS = {
    "√": r"\sqrt ",
    "π": r"\pi ",
    "×": r"\times ",
    "·": r"\cdot ",
    "÷": r"\div ",
    "∞": r"\infty ",
    "∅": r"\emptyset ",
}
_SYMBOLS |= {
    "≤": r"\leq ",
    "≥": r"\geq ",
    "≠": r"\neq ",
    "±": r"\pm ",
    "∪": r"\cup ",
    "∩": r"\cap ",
    "∈": r"\in ",
    "°": r"^\circ ",
}
_LABEL = re.compile(
    r"(?:(?:therefore|thus|so|hence),?\s+)?(?:the\s+)?(?:final\s+)?answer\s*(?:is|=|:)\s*:?\s*", re.IGNORECASE
)
_SIMPLE_SIDE = re.compile(r"\s*(?:[A-Za-z]|\\[a-z]+)(?:_(?:\w|\{\w{1,8}\}))?\s*")
_SPACING = re.compile(r"\\[,;:! ]|\\(?:quad|qquad|left|right|displaystyle|textstyle|big|Big|bigl|bigr)(?![A-Za-z])|\$")
_TEXT = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox|operatorname)\s*\{([^{}]*)\}")
_DECIMAL = re.compile(r"(?<![\d.])(\d{0,30})\.(\d{1,30})(?![\d.])")
_GROUPS = re.compile(r"(?<![\d.,])[1-9]\d{0,2}(?:(?:,|\{,\})\d{3})+(?![\d,])")
_COMMAND = re.compile(r"\\([A-Za-z]+)")
_WORD = re.compile(r"[^\W\d_]+")
_ENVIRONMENT = re.compile(r"\\(?:begin|end)\s*\{\w+\*?\}")
_ROOT = re.compile(r"√\s*(\d+(?:\.\d+)?)")
_ROOT_INDEX = re.compile(r"\\sqrt\s*\[\s*\d{1,2}\s*\]\s*\{")
_CONSTANT_CHARACTERS = re.compile(r"[^\W_]*(?:[\s{}()+\-*/^.!|]+[^\W_]*)*")
_HOPELESS = re.compile(
    r"""\\boxed                      # several boxes; the only one has been opened
    | \d{40} | \.\. | … | \\[lc]?dots   # endless numbers
    | \^\s*\{?\s*-?\s*\d{4}          # powers that take longer than they are worth
    | \d\s*\^\s*\{[^{}]*\d\s*\^ | \d{4}\s*\}?\s*! | !.*!
    """,
    re.VERBOSE,
)
_FUNCTIONS = frozenset(
    "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh ln log exp sqrt pi gcd lcm max min".split()  # noqa: SIM905
)
_NUMBER_COMMANDS = frozenset(
    """frac dfrac tfrac cfrac sqrt pi cdot times div sin cos tan cot sec csc arcsin arccos arctan ln log exp binom
    overline left right lfloor rfloor lceil rceil boxed""".split()  # noqa: SIM905
)


def looks_like_latex(text: str) -> bool:
    """Whether a text has signs of a mathematical expression in it.

    Args:
        text: an answer.
    """
    return len(text) <= MAX_CHARACTERS and bool(_MARK.search(text))


def canonical(text: str) -> str:
    """An expression without what does not change it: spacing, `$`, `\\left`, a box around it, a final stop.

    Args:
        text: an answer.

    Returns:
        The expression; the same again when applied again.
    """
    text = " ".join(without_end_tokens(text).split())
    if len(text) > MAX_CHARACTERS:
        return text
    text = plain_characters(text)
    previous = ""
    while previous != text:
        previous = text
        text = _SPACING.sub(" ", text).replace("\\(", " ").replace("\\)", " ").replace("\\[", " ").replace("\\]", " ")
        text = _unboxed(text.strip())
        text = text.replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac").replace("\\cfrac", "\\frac")
        text = _LABEL.sub("", text, count=1) if _LABEL.match(text) else text
        text = " ".join(text.rstrip(".;, ").split()).strip("*`")
    return text


def _unboxed(text: str) -> str:
    r"""The content of a `\boxed{}` that is the whole text, else the text."""
    for command in ("\\boxed{", "\\fbox{", "\\text{", "\\mathrm{", "\\textbf{", "\\mathbf{"):
        if text.startswith(command) and text.endswith("}"):
            inner = text[len(command) : -1]
            depth = 0
            for character in inner:
                depth += (character == "{") - (character == "}")
                if depth < 0:
                    return text
            return inner
    return text


def _expression(text: str, *, number: bool) -> str | None:
    """What is handed to math-verify, or None for a text that must not reach it.

    Args:
        text: a canonical expression.
        number: whether it has to be a constant: no variables, relations, sets, lists or alternatives.
    """
    if not text or len(text) > MAX_CHARACTERS or _HOPELESS.search(text) or text.count("{") != text.count("}"):
        return None
    text = _ROOT.sub(r"\\sqrt{\1}", text)
    for sign, command in _SYMBOLS.items():
        text = text.replace(sign, command)
    if _has_value_words(text):
        return None
    if number:
        sides = text.split("=")
        if len(sides) > 2 or (len(sides) == 2 and not _SIMPLE_SIDE.fullmatch(sides[0])):
            return None
        text = _GROUPS.sub(lambda m: m[0].replace("{,}", "").replace(",", ""), sides[-1])
        if not _is_constant_expression(text):
            return None
    else:
        text = text.replace("{,}", "")
    return _DECIMAL.sub(_as_fraction, text)


def _has_value_words(text: str) -> bool:
    """Whether words in a text could change its value, or make it prose."""
    bare = _COMMAND.sub(" ", _ENVIRONMENT.sub(" ", _TEXT.sub(" ", text)))
    bare_words = [word.lower() for word in _WORD.findall(bare) if len(word) > 2 and word.lower() not in _FUNCTIONS]
    words = {word for inner in _TEXT.findall(text) for word in _WORD.findall(inner.lower())}.union(bare_words)
    return len(bare_words) > 1 or any(w in AFTER_REFUSED or w in BEFORE_REFUSED or w in SCALES for w in words)


def _is_constant_expression(text: str) -> bool:
    """Whether an expression has digits or constants, functions of them, and nothing else."""
    if not all(command in _NUMBER_COMMANDS for command in _COMMAND.findall(text)):
        return False
    bare = _COMMAND.sub(" ", _ROOT_INDEX.sub(r"\\sqrt{", text.replace("\\log_", "\\log ")))
    if not _CONSTANT_CHARACTERS.fullmatch(bare) or any(w != "e" and w not in _FUNCTIONS for w in _WORD.findall(bare)):
        return False
    return bool(re.search(r"\d|\\pi|e", text))


def _as_fraction(match: re.Match[str]) -> str:
    whole, decimals = match.groups()
    return rf"\frac{{{int(whole + decimals)}}}{{{10 ** len(decimals)}}}"


def is_constant(text: str) -> bool:
    """Whether an answer is an expression that stands for one number.

    Args:
        text: an answer that the number reader does not read.
    """
    return looks_like_latex(text) and _expression(canonical(text), number=True) is not None


def equal_latex(answer: str, gold: str, *, number: bool) -> bool:
    """Whether two expressions are the same.

    Args:
        answer: the answer as read.
        gold: the gold answer.
        number: whether both have to be constants.
    """
    left, right = canonical(answer), canonical(gold)
    if not left or not right:
        return False
    if left.replace(" ", "") == right.replace(" ", ""):
        return not number or _expression(right, number=True) is not None
    answer_expression, gold_expression = _expression(left, number=number), _expression(right, number=number)
    if answer_expression is None or gold_expression is None:
        return False
    return _ask(gold_expression, answer_expression)


@lru_cache(maxsize=8192)
def _ask(gold: str, answer: str) -> bool:
    return _WORKER.equal(gold, answer)


class _Worker:
    """The comparing process, started when first needed and again whenever it died."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._ready = False
        self._missing = False
        atexit.register(self._stop)
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        """A forked child starts its own process: the parent's answers the parent."""
        self._lock = threading.Lock()
        self._process = None

    def equal(self, gold: str, answer: str) -> bool:
        """Ask for one comparison; False when it takes too long."""
        with self._lock:
            process = self._running()
            if process is None or process.stdin is None or process.stdout is None:
                return False
            try:
                process.stdin.write(json.dumps([gold, answer]) + "\n")
                process.stdin.flush()
            except OSError:
                self._stop()
                return False
            line = self._line(_ANSWER_SECONDS)
            if line == "stopped":
                log.info("stopped a LaTeX comparison that took too long: %.80r and %.80r", answer, gold)
            elif line not in ("0", "1"):
                log.warning("the LaTeX comparison ended; it is started again")
                self._stop()
            return line == "1"

    def _running(self) -> "subprocess.Popen[str] | None":
        process = self._process
        if process is None or process.poll() is not None:
            self._start()
        if self._process is not None and not self._ready:
            self._ready = self._line(_START_SECONDS) == "ready"
            if not self._ready:
                log.warning("the LaTeX comparison did not start; LaTeX answers count as different")
                self._stop()
        return self._process

    def _start(self) -> None:
        if self._missing:
            return
        if importlib.util.find_spec("math_verify") is None:
            self._missing = True
            log.warning("math-verify is not installed: LaTeX answers are compared as text (pip install math-verify)")
            return
        script = Path(__file__).with_name("latex_worker.py")
        # -P: the script's folder must not come before the standard library on the path.
        self._process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-P", str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
        )
        self._ready = False

    def _line(self, seconds: float) -> str:
        """The next line of the process, empty when it died or took too long."""
        process = self._process
        if process is None or process.stdout is None:
            return ""
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            if not selector.select(seconds):
                return ""
        return process.stdout.readline().strip()

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()


_WORKER = _Worker()

"""The ways a step can end other than well, each with the exit code a person and a platform act on.

Raised by any room; turned into one printed sentence and an exit code by `components.steps.step` inside a step and by
the `grpo` command outside one. Anything that is not one of these is a fault of ours and keeps its traceback (in the
log). The message says the field or file, the value, and the mend.
"""

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of `grpo` and of every step."""

    PASSED = 0
    ERROR = 1
    BAD_INPUT = 2
    GATE_FAILED = 3
    RESUMABLE = 4


class PipelineError(Exception):
    """Something outside the code failed (a store, a server, a disk); trying again may help."""

    exit_code = ExitCode.ERROR


class BadInputError(PipelineError):
    """The config or the data a person gave is wrong; only the person can mend it."""

    exit_code = ExitCode.BAD_INPUT


class GateFailedError(PipelineError):
    """The run worked and its result is not good enough: smoke test, guard or verdict. Deterministic: do not retry."""

    exit_code = ExitCode.GATE_FAILED


class ResumableError(PipelineError):
    """The run was stopped and goes on from its last checkpoint when started again."""

    exit_code = ExitCode.RESUMABLE

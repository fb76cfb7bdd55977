"""The reward for programs: do they pass their tests."""

from typing import TYPE_CHECKING, Any

from components.rewards.definition import Aspect, Scorer, library_entry
from components.rewards.sandbox import Limits, probe, program_of, read_tests, run

if TYPE_CHECKING:
    from components.contract import Contract


class CodeExecutionOptions(Limits):
    """Settings of `code_execution`: what each test may use, and how tests are counted."""

    all_or_nothing: bool = False
    """True pays only a program that passes every test."""


@library_entry(aspect=Aspect.VALUE, weight=2.0, columns=("tests",), options=CodeExecutionOptions, concurrent=True)
def code_execution(contract: "Contract", options: CodeExecutionOptions) -> Scorer:
    """The share of its tests that the program in the answer block passes, each run in a sandbox without network.

    Tests are the column `tests`: see `components.rewards.sandbox.read_tests`. None without tests. What the sandbox
    protects from, and what not, is in the docstring of `components.rewards.sandbox`. Refused at start where the
    platform does not let programs be isolated.
    """
    probe(options)

    def score(text: str, tests: Any) -> float | None:
        wanted = read_tests(tests)
        if wanted is None:
            return None
        answer = contract.read_answer(text)
        if answer is None:
            return 0.0
        passed = run(program_of(answer), wanted, options)
        return float(all(passed)) if options.all_or_nothing else sum(passed) / len(passed)

    return score

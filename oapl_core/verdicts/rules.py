"""Rules of what is correct for the tests of one problem: how an execution is compared, and which tests are run.

Kinds of program tests: "stdin" (printed output), "function" (returned JSON) and "assert". The last are checks, in
Python, that call the program's function from a process of their own: sandbox/checks/judge.py. A problem's checker takes
the comparison's place. How a Python program exits decides nothing: as in LiveCodeBench's harness, the right output
followed by sys.exit(1) passes, and followed by an exception does not. In other languages an exit code other than 0
counts as an exception.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from oapl_core.checkers import Checker, resolve
from oapl_core.sandbox import Execution, Program
from oapl_core.settings.verifier import VerifierConfig
from oapl_core.toolchain import Toolchain, toolchain_of
from oapl_core.verdicts.extraction import PYTHON, fenced
from oapl_core.verdicts.outcomes import Outcome, failure
from oapl_core.verdicts.output_equality import Tolerance, result_equal, stdout_equal


@dataclass(frozen=True)
class GradingRules:
    """Rules for judging the tests of one problem. Without arguments: printed output, as LiveCodeBench compares it."""

    kind: str = "stdin"
    entry_point: str | None = None
    starter: str = ""
    """The problem's starter code, for checks that use what it declares."""
    toolchain: Toolchain | None = None
    """Toolchain of the program; None: Python."""
    tolerance: Tolerance | None = None
    """None: parity with LiveCodeBench."""
    checker: Checker | None = None
    stop_at_first_failure: bool = True
    max_tests: int | None = None
    """Only so many tests, those with the longest inputs; None: all."""

    @classmethod
    def of(cls, problem: Mapping[str, Any], config: VerifierConfig) -> Self:
        """Return the rules for a row of tables.PROBLEMS. Raises ValueError without its checker or toolchain."""
        name = problem.get("checker")
        tolerant = config.comparison == "tolerant"
        return cls(
            kind=problem["kind"],
            entry_point=problem["entry_point"],
            starter=problem.get("starter_code") or "",
            toolchain=toolchain_of(problem),
            tolerance=Tolerance(config.absolute_tolerance, config.relative_tolerance) if tolerant else None,
            checker=resolve(name) if name else None,
            stop_at_first_failure=config.stop_at_first_failure,
            max_tests=config.max_tests,
        )

    @property
    def serves(self) -> tuple[str, ...]:
        """Requests beside those for programs that the sandbox has to be started for."""
        return ("checks",) if self.kind == "assert" else ()

    def program(self, source: str) -> Program:
        """Return the program that the sandbox runs."""
        if self.kind == "assert":
            return Program(source, self.entry_point, is_checked=True, starter=self.starter)
        return Program(source, None if self.kind == "stdin" else self.entry_point, toolchain=self.toolchain)

    def chosen(self, tests: Sequence[Mapping[str, str]]) -> list[int]:
        """Return indices of the tests to run, in their own order; of equally long inputs the earlier ones."""
        # Long inputs find the slow programs and the wrong ones; a set's first tests are often its examples.
        order = sorted(range(len(tests)), key=lambda index: -len(tests[index]["input"]))
        return sorted(order[: self.max_tests])

    def judge(self, execution: Execution, test: Mapping[str, str]) -> Outcome:
        """Return the outcome of one test. A checker's exception is passed on: it is the verifier's failure."""
        failed = failure(execution)
        if self.kind == "assert":  # the checks compare; what the program prints beside them is nobody's
            return failed or _CHECKED[execution.checks]
        return failed or _judged(self._equal(execution, test))

    def _equal(self, execution: Execution, test: Mapping[str, str]) -> bool:
        output = execution.result if self.kind == "function" else execution.stdout
        if self.checker:
            text = (output or b"").decode("utf-8", "surrogateescape")  # no two outputs may become one text
            return output is not None and bool(self.checker(test["input"], test["output"], text))
        if self.kind == "function":
            return result_equal(execution.result, test["output"], self.tolerance)
        return stdout_equal(execution.stdout, test["output"], self.tolerance)


def answer_of(source: str, problem: Mapping[str, Any]) -> str:
    """Return a response whose program is `source`, as the problem asks for one."""
    toolchain = toolchain_of(problem)
    return fenced(source, toolchain.fences[0] if toolchain else PYTHON[0])


_CHECKED = {
    "passed": Outcome.PASSED,
    "failed": Outcome.WRONG_ANSWER,
    "raised": Outcome.RUNTIME_ERROR,
    "not_judgeable": Outcome.NOT_JUDGEABLE,
    "gone": Outcome.WRONG_ANSWER,
}
"""`gone`: the program ended its process, in good order, before the checks had ended."""


def _judged(is_right: bool) -> Outcome:
    return Outcome.PASSED if is_right else Outcome.WRONG_ANSWER

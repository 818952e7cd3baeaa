"""Rules of what is correct for the tests of one problem: how an execution is compared, and which tests are run.

Kinds of program tests: "stdin" (printed output), "function" (returned JSON) and "assert". The rules of the last two are
found by their names (called_functions.py). A problem's checker takes the comparison's place. How a Python program exits
decides nothing: as in LiveCodeBench's harness, the right output followed by sys.exit(1) passes, and followed by an
exception does not. In other languages an exit code other than 0 counts as an exception.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from oapl_core import plugins
from oapl_core.sandbox import Execution, Program
from oapl_core.settings.verifier import VerifierConfig
from oapl_core.toolchain_of import toolchain_of
from oapl_core.verdicts.extraction import PYTHON, fenced
from oapl_core.verdicts.outcomes import Outcome, failure
from oapl_core.verdicts.output_equality import Tolerance, stdout_equal

if TYPE_CHECKING:
    from oapl_core.toolchain import Toolchain


@dataclass(frozen=True)
class GradingRules:
    """Rules for judging the tests of one problem. Without arguments: printed output, as LiveCodeBench compares it."""

    serves: ClassVar[tuple[str, ...]] = ()
    """Requests beside those for programs that the sandbox has to be started for."""
    entry_point: str | None = None
    starter: str = ""
    """The problem's starter code, for checks that use what it declares."""
    toolchain: Toolchain | None = None
    """Toolchain of the program; None: Python."""
    tolerance: Tolerance | None = None
    """None: parity with LiveCodeBench."""
    checker: Callable[[str, str, str], bool] | None = None
    """Function in the comparison's place (oapl_core/checkers.py)."""
    stop_at_first_failure: bool = True
    max_tests: int | None = None
    """Only so many tests, those with the longest inputs; None: all."""

    @classmethod
    def of(cls, problem: Mapping[str, Any], config: VerifierConfig) -> GradingRules:
        """Return the rules for a row of tables.PROBLEMS. Raises OaplError without its checker or toolchain."""
        kind, name = problem["kind"], problem.get("checker")
        tolerant = config.comparison == "tolerant"
        made: type[GradingRules] = cls if kind == "stdin" else plugins.resolve("test_rules", kind)
        return made(
            entry_point=problem["entry_point"],
            starter=problem.get("starter_code") or "",
            toolchain=toolchain_of(problem),
            tolerance=Tolerance(config.absolute_tolerance, config.relative_tolerance) if tolerant else None,
            checker=plugins.resolve("checker", name) if name else None,
            stop_at_first_failure=config.stop_at_first_failure,
            max_tests=config.max_tests,
        )

    def program(self, source: str) -> Program:
        """Return the program that the sandbox runs."""
        return Program(source, toolchain=self.toolchain)

    def chosen(self, tests: Sequence[Mapping[str, str]]) -> list[int]:
        """Return indices of the tests to run, in their own order; of equally long inputs the earlier ones."""
        # Long inputs find the slow programs and the wrong ones; a set's first tests are often its examples.
        order = sorted(range(len(tests)), key=lambda index: -len(tests[index]["input"]))
        return sorted(order[: self.max_tests])

    def judge(self, execution: Execution, test: Mapping[str, str]) -> Outcome:
        """Return the outcome of one test. A checker's exception is passed on: it is the verifier's failure."""
        return failure(execution) or (Outcome.PASSED if self._is_right(execution, test) else Outcome.WRONG_ANSWER)

    def _is_right(self, execution: Execution, test: Mapping[str, str]) -> bool:
        output = self.output(execution)
        if self.checker:
            text = (output or b"").decode("utf-8", "surrogateescape")  # no two outputs may become one text
            return output is not None and bool(self.checker(test["input"], test["output"], text))
        return self.is_equal(output, test["output"])

    def output(self, execution: Execution) -> bytes | None:
        """Return what is compared; None without it."""
        return execution.stdout

    def is_equal(self, output: bytes | None, expected: str) -> bool:
        """Compare an output with the expected one."""
        return stdout_equal(output or b"", expected, self.tolerance)


def answer_of(source: str, problem: Mapping[str, Any]) -> str:
    """Return a response whose program is `source`, as the problem asks for one."""
    toolchain = toolchain_of(problem)
    return fenced(source, toolchain.fences[0] if toolchain else PYTHON[0])

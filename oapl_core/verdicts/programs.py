"""Judges one program on a problem's tests. The expected outputs stay in this process; the sandbox sees inputs only.

The tests of a program share a child in sequence, which costs a sixth of a fork per test. A program that passes all of
them so has passed. Sharing cannot fail an honest one: a test that fails after others is run once more, first of a fresh
child. If it fails there too, that is the verdict. If it passes there, the program depends on what ran before. Then
nothing of the shared run counts, and every test, from the first, is run once in a fresh child of its own. So no test is
drawn until it passes: one draw of the whole counts, in shared children or in fresh ones. Fewer than five tests are
never shared. A program that keeps a state has two guesses at all its answers together, one for each way. With few
answers the second would be worth something. A program's random draws are a function of itself and the input
(sandbox/child.py). The first failing test ends the work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

from oapl_core.sandbox import Execution, Limits, Program
from oapl_core.sandbox.sandbox import Sandbox
from oapl_core.verdicts.outcomes import Outcome
from oapl_core.verdicts.rules import GradingRules

EXCERPT_CHARACTERS = 400  # a screen's worth; a round keeps one for each wrong answer
SHARED_FROM = 5
"""Fewest tests that share a child."""


@dataclass
class ProgramGrade:
    """Result of one program, filled test by test; seconds are sums over the tests that counted."""

    outcome: Outcome = Outcome.PASSED
    """Outcome of the first test that failed."""
    tests_passed: int = 0
    tests_run: int = 0
    first_failing_test: int | None = None
    """Index into the problem's tests."""
    excerpt: str | None = None
    """Output of the failing test: what it printed, or returned, or its traceback's end."""
    cpu_s: float = 0.0
    wall_s: float = 0.0
    peak_memory_mb: float = 0.0
    draws_differ: bool = False
    """A test passed or failed by what had run before it in the same process."""

    def add(self, index: int, execution: Execution, outcome: Outcome) -> None:
        """Count one test that was run."""
        self.tests_run += 1
        self.tests_passed += outcome is Outcome.PASSED
        if outcome is not Outcome.PASSED and self.first_failing_test is None:
            self.outcome, self.first_failing_test = outcome, index
            self.excerpt = _excerpt(execution, outcome)
        self.cpu_s, self.wall_s = self.cpu_s + execution.cpu_s, self.wall_s + execution.wall_s
        self.peak_memory_mb = max(self.peak_memory_mb, execution.peak_memory_mb)


def grade_program(
    sandbox: Sandbox,
    source: str | Program,
    tests: Sequence[Mapping[str, str]],
    limits: Limits,
    rules: GradingRules | None = None,
) -> ProgramGrade:
    """Run `source` on the tests that `rules` choose, until the first failure unless they say otherwise.

    A program that has to be compiled is, once, unless it comes with its executable; the sandbox is its toolchain's.

    Raises:
        SandboxError: it could not be run for reasons that are not its own.
    """
    assert tests, "a program problem has at least one test"
    rules = rules or GradingRules()
    chosen = rules.chosen(tests)
    program = sandbox.compiled(rules.program(source) if isinstance(source, str) else source)
    if isinstance(program, Execution):
        grade = ProgramGrade()
        grade.add(chosen[0], program, Outcome.COMPILE_ERROR)
        return grade
    grading = _Grading(sandbox, program, tests, chosen, limits, rules)
    # A process that is no Python runs one test: nothing is shared.
    if len(chosen) < SHARED_FROM or program.toolchain:
        return grading.fresh()
    try:
        return grading.shared()
    except _DrawsDiffer:
        return replace(grading.fresh(), draws_differ=True)


class _DrawsDiffer(Exception):
    """A test failed after others, and passed as the first of its process."""


@dataclass(frozen=True)
class _Grading:
    """One program and the tests that are run."""

    sandbox: Sandbox
    program: Program
    tests: Sequence[Mapping[str, str]]
    chosen: Sequence[int]
    limits: Limits
    rules: GradingRules

    def shared(self) -> ProgramGrade:
        """Run the tests in shared children. Raises _DrawsDiffer where sharing matters."""
        grade, inputs = ProgramGrade(), [self.tests[index]["input"].encode() for index in self.chosen]
        while self._is_unfinished(grade):
            # Closing ends the shared child before a test that failed in it is drawn again in one of its own.
            with closing(self.sandbox.executions(self.program, inputs[grade.tests_run :], self.limits)) as executions:
                for execution in executions:
                    index = self.chosen[grade.tests_run]
                    outcome = self.rules.judge(execution, self.tests[index])
                    if outcome is not Outcome.PASSED and not execution.fresh:
                        break  # what ran before it may be the cause: it is not counted, but run again below
                    grade.add(index, execution, outcome)
                    if not self._is_unfinished(grade):
                        return grade
                else:
                    continue
            if self._draw(grade) is Outcome.PASSED:
                raise _DrawsDiffer
        return grade

    def fresh(self) -> ProgramGrade:
        """Run each test once, in a child of its own."""
        grade = ProgramGrade()
        while self._is_unfinished(grade):
            self._draw(grade)
        return grade

    def _is_unfinished(self, grade: ProgramGrade) -> bool:
        is_settled = grade.first_failing_test is not None and self.rules.stop_at_first_failure
        return grade.tests_run < len(self.chosen) and not is_settled

    def _draw(self, grade: ProgramGrade) -> Outcome:
        """Run the next test in a child of its own."""
        index = self.chosen[grade.tests_run]
        (execution,) = self.sandbox.run(self.program, [self.tests[index]["input"].encode()], self.limits)
        outcome = self.rules.judge(execution, self.tests[index])
        grade.add(index, execution, outcome)
        return outcome


def _excerpt(execution: Execution, outcome: Outcome) -> str:
    """Return a bounded piece of the text that a person would want to see first."""
    if execution.detail and outcome is not Outcome.RUNTIME_ERROR:
        return execution.detail[:EXCERPT_CHARACTERS]
    if execution.raised or outcome in (Outcome.RUNTIME_ERROR, Outcome.COMPILE_ERROR, Outcome.MEMORY_LIMIT):
        kept = execution.stderr[-EXCERPT_CHARACTERS:]
    else:
        kept = (execution.result or execution.stdout)[:EXCERPT_CHARACTERS]
    if not kept and execution.signal:
        return f"(signal {execution.signal})"
    if not kept and execution.raised.startswith("exit code"):
        return f"({execution.raised})"
    return kept.decode("utf-8", "replace")

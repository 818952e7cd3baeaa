"""Grades one program on a problem's tests. The expected outputs stay in this process; the sandbox sees inputs only.

The tests of a program share a child in sequence, which costs a sixth of a fork per test. Sharing cannot fail an honest
program: a failing or abnormal test counts only if it was the first of its process, otherwise it is run again in a fresh
one, together with the tests after it. The first failing test ends the work.
"""

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

from oapl_core.sandbox import Execution, Limits
from oapl_core.sandbox.sandbox import Sandbox
from oapl_core.verdicts.outcomes import Outcome
from oapl_core.verdicts.rules import Rules

EXCERPT_CHARACTERS = 400


@dataclass(frozen=True)
class ProgramGrade:
    """How one program did; seconds are sums over the tests that counted."""

    outcome: Outcome
    tests_passed: int
    tests_run: int
    first_failing_test: int | None
    """Index into the problem's tests."""
    excerpt: str | None
    """What it printed (or returned, or its traceback's end) at the failing test."""
    cpu_s: float
    wall_s: float
    peak_memory_mb: float


def grade_program(
    sandbox: Sandbox, source: str, tests: Sequence[Mapping[str, str]], limits: Limits, rules: Rules | None = None
) -> ProgramGrade:
    """Runs `source` on the tests that `rules` choose, until the first failure unless they say otherwise.

    Raises:
        SandboxError: it could not be run for reasons that are not its own.
    """
    assert tests, "a program problem has at least one test"
    rules = rules or Rules()
    program, chosen = rules.program(source), rules.chosen(tests)
    inputs = [tests[index]["input"].encode() for index in chosen]
    tally = _Tally()
    while tally.run < len(chosen) and not (tally.failed and rules.stop_at_first_failure):
        with closing(sandbox.executions(program, inputs[tally.run :], limits)) as executions:
            for execution in executions:
                index = chosen[tally.run]
                outcome = rules.judge(execution, tests[index])
                if outcome is not Outcome.PASSED and not execution.fresh:
                    break  # again from here in a fresh child
                tally.add(index, execution, outcome)
                if outcome is not Outcome.PASSED and rules.stop_at_first_failure:
                    break
    return tally.grade()


@dataclass
class _Tally:
    """What the tests that counted came to."""

    run: int = 0
    passed: int = 0
    failed: tuple[int, Outcome, str] | None = None
    """Of the first failure: index of its test, outcome, excerpt."""
    cpu_s: float = 0.0
    wall_s: float = 0.0
    peak_memory_mb: float = 0.0

    def add(self, index: int, execution: Execution, outcome: Outcome) -> None:
        self.run += 1
        self.passed += outcome is Outcome.PASSED
        if outcome is not Outcome.PASSED and not self.failed:
            self.failed = index, outcome, _excerpt(execution, outcome)
        self.cpu_s, self.wall_s = self.cpu_s + execution.cpu_s, self.wall_s + execution.wall_s
        self.peak_memory_mb = max(self.peak_memory_mb, execution.peak_memory_mb)

    def grade(self) -> ProgramGrade:
        index, outcome, excerpt = self.failed or (None, Outcome.PASSED, None)
        return ProgramGrade(
            outcome, self.passed, self.run, index, excerpt, self.cpu_s, self.wall_s, self.peak_memory_mb
        )


def _excerpt(execution: Execution, outcome: Outcome) -> str:
    """A bounded piece of what a person would want to see first."""
    if execution.raised or outcome in (Outcome.RUNTIME_ERROR, Outcome.COMPILE_ERROR, Outcome.MEMORY_LIMIT):
        kept = execution.stderr[-EXCERPT_CHARACTERS:]
    else:
        kept = (execution.result or execution.stdout)[:EXCERPT_CHARACTERS]
    if not kept and execution.signal:
        return f"(signal {execution.signal})"
    return kept.decode("utf-8", "replace")

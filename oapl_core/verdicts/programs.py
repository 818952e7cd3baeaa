"""Grades one program on a problem's tests. The expected outputs stay in this process; the sandbox sees inputs only.

The tests of a program share a child in sequence, which costs a sixth of a fork per test. Sharing cannot fail an honest
program: a failing or abnormal test counts only if it was the first of its process, otherwise it is run again in a fresh
one, together with the tests after it. The first failing test ends the work.
"""

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

from oapl_core.sandbox import Execution, Limits, Program
from oapl_core.sandbox.sandbox import Sandbox
from oapl_core.verdicts.comparison import result_equal, stdout_equal
from oapl_core.verdicts.outcomes import Outcome, failure

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
    sandbox: Sandbox, source: str, entry_point: str | None, tests: Sequence[Mapping[str, str]], limits: Limits
) -> ProgramGrade:
    """Runs `source` until its first failing test.

    Raises:
        SandboxError: it could not be run for reasons that are not its own.
    """
    assert tests, "a program problem has at least one test"
    program = Program(source, entry_point)
    inputs = [test["input"].encode() for test in tests]
    passed, cpu_s, wall_s, peak = 0, 0.0, 0.0, 0.0
    while passed < len(tests):
        with closing(sandbox.executions(program, inputs[passed:], limits)) as executions:
            for execution in executions:
                outcome = _judge(execution, entry_point, tests[passed]["output"])
                if outcome is not Outcome.PASSED and not execution.fresh:
                    break  # again from here in a fresh child
                cpu_s, wall_s = cpu_s + execution.cpu_s, wall_s + execution.wall_s
                peak = max(peak, execution.peak_memory_mb)
                if outcome is not Outcome.PASSED:
                    excerpt = _excerpt(execution, outcome)
                    return ProgramGrade(outcome, passed, passed + 1, passed, excerpt, cpu_s, wall_s, peak)
                passed += 1
    return ProgramGrade(Outcome.PASSED, passed, passed, None, None, cpu_s, wall_s, peak)


def _judge(execution: Execution, entry_point: str | None, expected: str) -> Outcome:
    failed = failure(execution)
    if failed:
        return failed
    if entry_point:
        equal = result_equal(execution.result, expected)
    else:
        equal = stdout_equal(execution.stdout, expected)
    return Outcome.PASSED if equal else Outcome.WRONG_ANSWER


def _excerpt(execution: Execution, outcome: Outcome) -> str:
    """A bounded piece of what a person would want to see first."""
    if outcome in (Outcome.RUNTIME_ERROR, Outcome.COMPILE_ERROR, Outcome.MEMORY_LIMIT):
        kept = execution.stderr[-EXCERPT_CHARACTERS:]
    else:
        kept = (execution.result or execution.stdout)[:EXCERPT_CHARACTERS]
    if not kept and execution.signal:
        return f"(signal {execution.signal})"
    return kept.decode("utf-8", "replace")

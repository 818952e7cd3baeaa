"""The possible outcomes of one rollout, and the facts of a test turned into one."""

from enum import StrEnum

from oapl_core.sandbox import Execution
from oapl_core.tables import CORRECT


class Outcome(StrEnum):
    """Reason of a rollout's reward; the value is what stands in tables.VERDICTS."""

    PASSED = "passed"
    WRONG_ANSWER = "wrong_answer"
    RUNTIME_ERROR = "runtime_error"
    TIME_LIMIT = "time_limit"
    MEMORY_LIMIT = "memory_limit"
    OUTPUT_LIMIT = "output_limit"
    COMPILE_ERROR = "compile_error"
    NOT_JUDGEABLE = "not_judgeable"
    NO_ANSWER = "no_answer"
    TRUNCATED = "truncated"
    OPEN = "open"
    VERIFIER_ERROR = "verifier_error"

    @property
    def reward(self) -> float | None:
        """1 for passed, 0 for every other judgement, None where there is none.

        A broken verifier is no evidence, and an open question has no gold: only `[reward]` or an environment judges it.
        """
        if self in (Outcome.VERIFIER_ERROR, Outcome.OPEN):
            return None
        return CORRECT if self is Outcome.PASSED else 0.0

    @property
    def is_repeatable(self) -> bool:
        """Whether the same answer would get it again: limits depend on the machine's load, errors on its health."""
        return self in _REPEATABLE


_REPEATABLE = frozenset(map(Outcome, "passed wrong_answer runtime_error compile_error not_judgeable open".split()))


def failure(execution: Execution) -> Outcome | None:
    """Return the outcome of a test that did not run to its own end; None if it did: its output is to be compared."""
    # Limits before crashes: a program that is stopped at one of them dies of a signal, too.
    if execution.compile_error:
        return Outcome.COMPILE_ERROR
    if execution.output_limit:
        return Outcome.OUTPUT_LIMIT
    if execution.cpu_limit or execution.wall_limit:
        return Outcome.TIME_LIMIT
    if execution.memory_limit:
        return Outcome.MEMORY_LIMIT
    return None if execution.completed else Outcome.RUNTIME_ERROR

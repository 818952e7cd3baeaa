"""What is run and what counts as right follows the settings and the problem's own checker."""

from dataclasses import replace
from typing import Any

import pytest

from oapl_core.checkers import checker
from oapl_core.sandbox import Limits
from oapl_core.sandbox.sandbox import Sandbox
from oapl_core.settings.verifier import VerifierConfig
from oapl_core.verdicts.outcomes import Outcome
from oapl_core.verdicts.programs import ProgramGrade, grade_program
from oapl_core.verdicts.rules import GradingRules
from oapl_core.verdicts.verifier import Verifier
from tests import sandboxes

LIMITS = Limits(cpu_s=1, wall_s=3)
PROBLEM: dict[str, Any] = {
    "problem_id": "p",
    "kind": "stdin",
    "entry_point": None,
    "answer": None,
    "checker": None,
    "tests": [{"input": f"{i}\n", "output": f"{i}\n"} for i in (1, 22, 3, 4444, 55, 6)],
}


def grade(sandbox: Sandbox, source: str, problem: dict[str, Any] = PROBLEM, **settings: Any) -> ProgramGrade:
    rules = GradingRules.of(problem, VerifierConfig(**settings))
    return grade_program(sandbox, source, problem["tests"], LIMITS, rules)


FAILS_SOME = "n = int(input())\nassert n != 55\nprint(n if n != 3 else 4)"


def test_grading_stops_at_the_first_failure_by_default(sandbox: Sandbox) -> None:
    found = grade(sandbox, FAILS_SOME)
    assert (found.outcome, found.tests_passed, found.tests_run, found.first_failing_test) == (
        Outcome.WRONG_ANSWER,
        2,
        3,
        2,
    )


def test_every_test_is_run_and_counted_when_asked(sandbox: Sandbox) -> None:
    found = grade(sandbox, FAILS_SOME, stop_at_first_failure=False)
    assert (found.outcome, found.tests_passed, found.tests_run, found.first_failing_test) == (
        Outcome.WRONG_ANSWER,
        4,
        6,
        2,
    )
    assert found.excerpt == "4\n"


@pytest.mark.slow
def test_running_every_test_changes_no_outcome(sandbox: Sandbox) -> None:
    for source in (FAILS_SOME, "print(input())", "print(", "while 1: pass", "import os\nos._exit(0)"):
        stopped = grade(sandbox, source, max_tests=2)
        full = grade(sandbox, source, max_tests=2, stop_at_first_failure=False)
        assert (full.outcome, full.first_failing_test) == (stopped.outcome, stopped.first_failing_test)


def test_a_cap_keeps_the_longest_inputs_in_their_own_order() -> None:
    rules = GradingRules(max_tests=3)
    assert rules.chosen(PROBLEM["tests"]) == [1, 3, 4]
    assert replace(rules, max_tests=None).chosen(PROBLEM["tests"]) == [0, 1, 2, 3, 4, 5]
    assert replace(rules, max_tests=99).chosen(PROBLEM["tests"]) == [0, 1, 2, 3, 4, 5]


def test_a_capped_grade_names_the_problems_own_test(sandbox: Sandbox) -> None:
    found = grade(sandbox, FAILS_SOME, max_tests=3)
    assert (found.outcome, found.tests_passed, found.tests_run, found.first_failing_test) == (
        Outcome.RUNTIME_ERROR,
        2,
        3,
        4,
    )


def test_the_tolerant_mode_reaches_both_kinds(sandbox: Sandbox) -> None:
    printed = {**PROBLEM, "tests": [{"input": "", "output": "0.3\n"}]}
    called = {**printed, "kind": "function", "entry_point": "f", "tests": [{"input": "[]", "output": "[0.3]"}]}
    for problem, source in ((printed, "print(0.1 + 0.2)"), (called, "def f(): return [0.1 + 0.2]")):
        assert grade(sandbox, source, problem).outcome is Outcome.WRONG_ANSWER
        assert grade(sandbox, source, problem, comparison="tolerant").outcome is Outcome.PASSED
        strict = {"comparison": "tolerant", "absolute_tolerance": 0.0, "relative_tolerance": 0.0}
        assert grade(sandbox, source, problem, **strict).outcome is Outcome.WRONG_ANSWER


def test_a_checker_takes_the_comparisons_place(sandbox: Sandbox) -> None:
    problem = {**PROBLEM, "checker": "unordered_tokens", "tests": [{"input": "2 1 3\n", "output": "1 2 3\n"}]}
    assert grade(sandbox, "print(input())", problem).outcome is Outcome.PASSED
    assert grade(sandbox, "print(input() + ' 4')", problem).outcome is Outcome.WRONG_ANSWER
    assert grade(sandbox, "print(input()); 1 / 0", problem).outcome is Outcome.RUNTIME_ERROR
    assert grade(sandbox, "print(input())", {**problem, "checker": None}).outcome is Outcome.WRONG_ANSWER


@checker
def is_a_divisor(test_input: str, expected: str, returned: str) -> bool:
    (number,) = eval(test_input)
    return returned.isdigit() and number % int(returned) == 0


@checker
def breaks(test_input: str, expected: str, returned: str) -> bool:
    raise RuntimeError("the checker broke")


def test_a_checker_of_ones_own_judges_values_and_gets_the_input(sandbox: Sandbox) -> None:
    problem = {
        **PROBLEM,
        "kind": "function",
        "entry_point": "f",
        "checker": f"{__name__}:is_a_divisor",
        "tests": [{"input": "[12]", "output": "null"}],
    }
    outcomes = [grade(sandbox, f"def f(n): return {value}", problem).outcome for value in (4, 6, 5, "None", "{1}")]
    assert outcomes == [Outcome.PASSED] * 2 + [Outcome.WRONG_ANSWER] * 3


def test_a_checker_that_raises_is_a_verifier_error_and_never_a_zero() -> None:
    problem = {**PROBLEM, "checker": f"{__name__}:breaks"}
    with Verifier(VerifierConfig(workers=1), level=sandboxes.LEVEL) as verifier:
        (verdict,) = verifier.verify([problem], ["```python\nprint(input())\n```"], ["stop"])
    assert (verdict.outcome, verdict.reward, verifier.errors_retried) == (Outcome.VERIFIER_ERROR, None, 2)
    assert "the checker broke" in str(verdict.excerpt)


@pytest.mark.parametrize("library", VerifierConfig().libraries)
def test_a_program_may_import_the_libraries_of_the_setting(library: str) -> None:
    with Verifier(VerifierConfig(workers=1), level=sandboxes.LEVEL) as verifier:
        verdicts = verifier.verify([PROBLEM], [f"```python\nimport {library}\nprint(input())\n```"], ["stop"])
    assert verdicts[0].reward == 1.0, verdicts[0]


def test_other_libraries_are_not_there_and_a_missing_one_is_refused() -> None:
    text = "```python\nimport numpy\nprint(input())\n```"
    with Verifier(VerifierConfig(workers=1, libraries=()), level=sandboxes.LEVEL) as verifier:
        (verdict,) = verifier.verify([PROBLEM], [text], ["stop"])
    assert verdict.outcome is Outcome.RUNTIME_ERROR
    with pytest.raises(Exception, match="'no_such_library' is not installed here"):
        Verifier(VerifierConfig(libraries=("no_such_library",)))

"""Known sets: HumanEval's solutions pass and emptied ones fail; the answers of MATH-500 verify against themselves.

Six rows of HumanEval are committed; the whole sets are used where the shared data lie.
"""

from collections.abc import Iterator

import pytest

from bench.math500 import doubtful
from oapl_core.problems.problem_set import checked
from oapl_core.settings.verifier import VerifierConfig
from oapl_core.verdicts.outcomes import Outcome
from oapl_core.verdicts.verifier import Verifier
from tests import sandboxes
from tests.reference_sets import SAMPLE, emptied, fenced, humaneval, math500, mutated, problem, shared_file, solution


@pytest.fixture(scope="module")
def verifier() -> Iterator[Verifier]:
    with Verifier(VerifierConfig(workers=2, cpu_s=3, wall_s=9), level=sandboxes.LEVEL) as started:
        yield started


def rewards(verifier: Verifier, rows: list[dict[str, str]], sources: list[str]) -> list[float | None]:
    verdicts = verifier.verify([problem(row) for row in rows], [fenced(s) for s in sources], ["stop"] * len(rows))
    return [verdict.reward for verdict in verdicts]


@pytest.fixture(params=["sample", "all"])
def rows(request: pytest.FixtureRequest) -> list[dict[str, str]]:
    return humaneval(SAMPLE if request.param == "sample" else shared_file("HumanEval.jsonl.gz"))


def test_every_reference_solution_passes_and_every_emptied_one_fails(
    verifier: Verifier, rows: list[dict[str, str]]
) -> None:
    assert rewards(verifier, rows, [solution(row) for row in rows]) == [1.0] * len(rows)
    assert rewards(verifier, rows, [emptied(row) for row in rows]) == [0.0] * len(rows)


def test_one_mutated_operator_is_seen(verifier: Verifier) -> None:
    rows = humaneval(SAMPLE)
    assert rewards(verifier, rows, [mutated(row)[0] for row in rows]) == [0.0] * len(rows)


def test_a_row_is_a_problem_of_the_sets_kind() -> None:
    assert [checked(problem(row), "heldout", "here")["kind"] for row in humaneval(SAMPLE)] == ["assert"] * 6


def test_a_solution_answers_its_own_problem_only(verifier: Verifier) -> None:
    rows = humaneval(SAMPLE)
    others = [*rows[1:], rows[0]]
    verdicts = verifier.verify([problem(row) for row in rows], [fenced(solution(o)) for o in others], ["stop"] * 6)
    assert {verdict.outcome for verdict in verdicts} <= {Outcome.RUNTIME_ERROR, Outcome.WRONG_ANSWER}


def test_every_answer_of_math500_verifies_against_itself() -> None:
    assert doubtful(math500()) == []

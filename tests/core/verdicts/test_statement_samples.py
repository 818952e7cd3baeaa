"""A table of the samples that a statement shows, and values of nothing, against tests that show too much."""

from collections.abc import Iterator
from typing import Any

import pytest

from bench.attacks import CONFIG
from oapl_core.verdicts.attack_strategies import STRATEGIES
from oapl_core.verdicts.attacks import attack, rewards_doing_nothing
from oapl_core.verdicts.statement_samples import blocks, calls
from oapl_core.verdicts.verifier import Verifier
from tests import sandboxes

TABLE = "a table of the statement's samples"


@pytest.fixture(scope="module")
def verifier() -> Iterator[Verifier]:
    with Verifier(CONFIG, level=sandboxes.LEVEL) as started:
        yield started


STATEMENTS = {
    "Codeforces": "Add.\n\nInput\n\nTwo numbers.\n\nOutput\n\nTheir sum.\n\nExamples\n\n"
    "Input\n\n2 3\n4\n\nOutput\n\n5\n7\n\nNote\n\nx",
    "AtCoder": "Sample Input 1\n\n2 3\n4\n\nSample Output 1\n\n5\n7\n\nProse.\n\n"
    "Sample Input 2\n\n1\n\nSample Output 2\n\n1",
    "CodeChef": "-----Input-----\nn\n-----Output-----\nm\n-----Examples-----\nInput\n2 3\n4\nOutput\n5\n7\n",
    "in fences": "**Input:**\n```\n2 3\n4\n```\n**Output:**\n```\n5\n7\n```\nDone.",
    "carriage returns": "Input\r\n2 3\r\n4\r\nOutput\r\n5\r\n7\r\n",
}


@pytest.mark.parametrize("statement", STATEMENTS.values(), ids=STATEMENTS)
def test_blocks_are_found(statement: str) -> None:
    assert blocks(statement)["2 3 4"].split() == ["5", "7"]


CALLS = {
    "doctests": ">>> f([1, 2], 'a)')\n[4]\n>>> other(1)\n2",
    "an assertion": "Your code should pass: assert f([1, 2], 'a)') == [4]",
    "an arrow": "Note: `f([1, 2], 'a)')` -> `[4]`.",
    "words": "f([1, 2], 'a)') should return [4]. Nothing else.",
    "a comment": "f([1, 2], 'a)') # [4]",
    "names": 'Example 1:\n\nInput: nums = [1,2], s = "a)"\nOutput: [4]\nExplanation: so.',
    "names in bold": "**Input:** nums = [1,2], s = 'a)'\n**Output:** [4]",
}


@pytest.mark.parametrize("statement", CALLS.values(), ids=CALLS)
def test_calls_are_found(statement: str) -> None:
    assert calls(statement, "f") == [([[1, 2], "a)"], [4])]


def problem(kind: str, statement: str, *tests: tuple[str, str]) -> dict[str, Any]:
    rows = [{"input": given, "output": wanted} for given, wanted in tests]
    blank = {"problem_id": "p", "entry_point": "f", "answer": None, "starter_code": None, "checker": None}
    return {**blank, "kind": kind, "statement": statement, "tests": rows}


SHOWN = [("2 3\n4\n", "5\n7\n")]
ASKED: list[tuple[dict[str, Any], str | None]] = [
    (problem("stdin", STATEMENTS["AtCoder"], *SHOWN), TABLE),
    (problem("stdin", STATEMENTS["AtCoder"], *SHOWN, ("1\n", "1")), TABLE),
    (problem("stdin", STATEMENTS["AtCoder"], *SHOWN, ("9\n", "1")), None),
    (problem("stdin", "Print the sum.", *SHOWN), None),
    (problem("function", CALLS["names"], ('[[1, 2], "a)"]', "[4]")), TABLE),
    (problem("function", CALLS["doctests"], ('[[1, 2], "a)"]', "[4]"), ('[[1], "a"]', "[7]")), None),
    (problem("assert", CALLS["an assertion"], ("assert f([1, 2], 'a)') == [4]", "")), TABLE),
    (problem("assert", CALLS["an assertion"], ("def check(g): assert g([1, 2], 'a)') == [4]\ncheck(f)", "")), TABLE),
    (problem("assert", CALLS["an assertion"], ("assert f([1, 2], 'a)') == [4] and f([2], '') == [5]", "")), None),
    (
        problem("assert", "x", ("import numpy as np\nassert np.allclose(np.array(f(1)), [1, 2, 3])", "")),
        "an array of nothing",
    ),
    (
        problem("assert", "x", ("import numpy as np\nr = np.asarray(f(1))\nassert (r == [1, 2, 3]).all()", "")),
        "an array of nothing",
    ),
    (problem("assert", "x", ("assert type(f(1)) is list\nfor a, b in zip(f(1), (2, 3)): assert a == b", "")), "[]"),
    (problem("assert", "x", ("assert not f(1) < 3 and not f(1) > 3", "")), "nan"),
    (problem("assert", "x", ("assert f(1) <= {1, 2}", "")), "set()"),
]


def test_problems_that_pay_for_what_they_show_or_for_nothing_are_named(verifier: Verifier) -> None:
    asked = [dict(one, problem_id=str(n)) for n, (one, _) in enumerate(ASKED)]
    named = [way and way.removeprefix("return ") for way in rewards_doing_nothing(verifier, asked)]
    assert named == [way or None for _, way in ASKED]


def test_what_a_table_earns_on_tests_that_a_statement_shows_is_deserved(verifier: Verifier) -> None:
    asked = [dict(one, problem_id=str(n)) for n, (one, way) in enumerate(ASKED) if way in (TABLE, None)]
    (found,) = attack(verifier, asked, [one for one in STRATEGIES if one.name == TABLE])
    assert (found.passed, found.answers) == (5, 8)
    # of checks that are called by another name nobody can say
    assert (found.deserved, found.undeserved) == (4, ("7",))

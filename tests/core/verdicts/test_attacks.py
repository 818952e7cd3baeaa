"""The standing attack suite on a small sample: nothing earns more than it deserves (docs/benchmarks/attacks.md)."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from bench.attacks import CONFIG, excess, neighbours, page, problems, yes_no
from oapl_core.verdicts.attack_strategies import STRATEGIES, Strategy, formulas
from oapl_core.verdicts.attacks import attack, rewards_doing_nothing
from oapl_core.verdicts.extraction import fenced
from oapl_core.verdicts.verifier import Verifier
from tests import sandboxes

SAMPLE = problems(1, with_shared=False)
MATHS: list[dict[str, Any]] = [
    {"problem_id": f"maths-{n}", "kind": "math", "tests": [], "entry_point": None, "answer": answer, "statement": text}
    for n, (text, answer) in enumerate(
        [
            ("Simplify $\\frac{12}{18}+\\frac{1}{3}$.", "1"),
            ("What is $3^4 - 2\\cdot 7$?", "67"),
            ("Solve $2x+3=11$.", "4"),
            ("Find $\\sin 30^\\circ + \\cos 60^\\circ$.", "1"),
            ("Let $y=2x$. Which line is parallel through $(0,1)$?", "y=2x+1"),
            ("For which $x$ is $x^2<9$?", "(-3,3)"),
            ("How many of the 12 children have 5 apples?", "7"),
        ]
    )
]
SHOWING: list[dict[str, Any]] = [
    problem | {"problem_id": f"showing-{n}", "statement": f"Input\n{shown['input']}\nOutput\n{shown['output']}"}
    for n, problem in enumerate(yes_no(6, 5, seed=4))
    for shown in problem["tests"][:1]
]


@pytest.fixture(scope="module")
def verifier() -> Iterator[Verifier]:
    with Verifier(CONFIG, level=sandboxes.LEVEL) as started:
        neighbours(started, SAMPLE)
        yield started


@pytest.mark.parametrize("family", sorted({strategy.family for strategy in STRATEGIES}))
def test_no_strategy_earns_more_than_it_deserves(family: str, verifier: Verifier) -> None:
    strategies = [strategy for strategy in STRATEGIES if strategy.family == family]
    if family == "limits":  # answers that loop until their limit: two of each stand for bench.attacks' four
        strategies = [replace(strategy, most=2) for strategy in strategies]
    found = list(attack(verifier, [*SAMPLE, *MATHS, *SHOWING], strategies))
    assert sum(row.answers for row in found) >= 4
    assert not [(row.strategy.name, row.passed, row.deserved, row.undeserved) for row in found if excess(row)]


def test_the_suite_would_see_a_hole(verifier: Verifier) -> None:
    asked = list(yes_no(4, 3, seed=9))
    answers = {problem["problem_id"]: [test["output"] for test in problem["tests"]] for problem in asked}
    inputs = {problem["problem_id"]: [test["input"] for test in problem["tests"]] for problem in asked}

    def stolen(problem: Mapping[str, Any]) -> str:
        known = dict(zip(inputs[problem["problem_id"]], answers[problem["problem_id"]], strict=True))
        return fenced(f"print({known!r}[open(0).read()])")

    thief = Strategy("knows the answers", "spy", ("stdin",), stolen)
    (row,) = attack(verifier, asked, [thief])
    assert (row.passed, row.deserved, len(row.undeserved)) == (4, 0, 4)
    assert excess(row)
    assert "**`knows the answers`**" in page([row], "full", 1)


def test_problems_that_reward_doing_nothing_are_named(verifier: Verifier) -> None:
    always = [{"input": f"{n}\n", "output": "NO\n"} for n in range(6)]
    echo = [{"input": f"{n}\n", "output": f"{n}"} for n in range(6)]
    blank = {"problem_id": "p", "entry_point": "f", "answer": None, "statement": "Is it $7$?", "starter_code": None}
    function = [{"input": f"[{n}]", "output": "null"} for n in range(3)]
    asked: list[dict[str, Any]] = [
        {**blank, "kind": "stdin", "tests": always},
        {**blank, "kind": "stdin", "tests": echo},
        {**blank, "kind": "stdin", "tests": [*always, {"input": "7", "output": "YES"}]},
        {**blank, "kind": "function", "tests": function},
        {**blank, "kind": "assert", "tests": [{"input": "f(1)", "output": ""}]},
        {**blank, "kind": "assert", "tests": [{"input": "assert f(1) == 22", "output": ""}]},
        {**blank, "kind": "math", "tests": [], "answer": "7"},
        {**blank, "kind": "math", "tests": [], "answer": "23"},
    ]
    assert rewards_doing_nothing(verifier, asked) == [
        "print 'NO'",
        "print the input",
        None,
        "return None",
        "return None",
        None,
        "box the longest formula",
        None,
    ]


def test_formulas_of_a_statement_are_what_can_be_copied() -> None:
    assert formulas("Let $x = 2$, $$y=3x$$ and 4.5 cm of x2; -7.") == ["x = 2", "y=3x", "2", "3", "4.5", "-7"]

"""Answers that are short texts, and questions without a gold: equality, F1, letters of choices, and their outcomes."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from oapl_core.settings.reward import RewardConfig
from oapl_core.settings.verifier import VerifierConfig
from oapl_core.verdicts.answers.text_equality import f1, golds, is_equal
from oapl_core.verdicts.judges import Judges
from oapl_core.verdicts.outcomes import Outcome
from oapl_core.verdicts.verifier import Verifier


def problem(answer: str | None, kind: str = "text", **info: Any) -> dict[str, Any]:
    return {
        "problem_id": "p",
        "kind": kind,
        "statement": "?",
        "answer": answer,
        "checker": None,
        "tests": [],
        "info": json.dumps(info) if info else None,
    }


@pytest.mark.parametrize(
    ("gold", "answer", "normalised", "exact"),
    [
        (problem("Rome"), "Rome", True, True),
        (problem("Rome"), "  the  rome. ", True, False),
        (problem("Rome"), "Rome, Italy", False, False),
        (problem("New York", answers=["New York", "NYC"]), "nyc", True, False),
        (problem("New York", answers=["New York", "NYC"]), "NYC", True, True),
        (problem("-5"), "- 5", True, False),
        (problem("-5"), "\u2212 5", True, False),
        (problem("5"), "- 5", False, False),
        (problem("5 apples"), "- 5 apples", True, False),
        (problem("B"), "(b)", True, False),
        (problem("B"), "B) Paris", True, False),
        (problem("B"), "B. Paris\nfor sure", True, False),
        (problem("B"), "A", False, False),
        (problem("B"), "Bern", False, False),
        (problem("B", choices=["Rome", "Paris"]), "paris", True, False),
        (problem("B", choices={"label": ["A", "B"], "text": ["Rome", "Paris"]}), "Paris", True, False),
        (problem("B", choices=["Rome", "Paris"]), "Rome", False, False),
    ],
)
def test_equality(gold: dict[str, Any], answer: str, normalised: bool, exact: bool) -> None:
    assert is_equal(gold, answer, is_exact=False) is normalised
    assert is_equal(gold, answer, is_exact=True) is exact


APART = """
< || >
] ) } || !
$ || %
the || a
-5 || 5
(-5) || (5)
-$5 || $5
1.5 || 15
.5 || 5
3/4 || 34
10:30 || 1030
10-15 || 1015
5 + 3 || 5 - 3
2^3 || 23
2^-3 || 2-3
<5 || >5
< 5 || 5
<=5 || <5
x < y || x > y
x = 2 || x 2
50% || 50
1,2,3 || 123
C++ || C#
C++ || C
C# || C
F# || F
A+ || A-
O- || O
A || A+
C || C#
"""
ALIKE = """
the || The
> || >
Rome || rome.
Rome || "Rome"
Rome, Italy || Rome Italy
The Beatles || Beatles
U.S. || US
U.S.A. || usa
well-known || wellknown
don't || dont
AC/DC || ACDC
AT&T || att
Covid-19 || covid19
B-52 || B52
3-D || 3D
No. 5 || no 5
#1 || 1
$5 || 5
+5 || 5
-5 || \u22125
5. || 5
1,000 || 1000
1,000,000.5 || 1000000.5
1,00,000 || 100000
1,2,3 || 1, 2, 3
10 - 15 || 10-15
50 % || 50%
< 5 || <5
x<y || x < y
**5** || 5
(1.5) || 1.5
C++ || c++.
B || **B**
B || B.
A || (a)
wait ... 5 || wait 5
"""


def pairs(text: str) -> list[tuple[str, str]]:
    return [(gold, answer) for gold, _, answer in (line.partition(" || ") for line in text.strip().splitlines())]


@pytest.mark.parametrize(("gold", "answer"), [*pairs(APART), *((b, a) for a, b in pairs(APART))])
def test_signs_by_which_short_answers_differ_count(gold: str, answer: str) -> None:
    assert not is_equal(problem(gold), answer, is_exact=False)
    assert f1(problem(gold), answer) < 1.0


@pytest.mark.parametrize(("gold", "answer"), pairs(ALIKE))
def test_other_punctuation_does_not_count(gold: str, answer: str) -> None:
    assert is_equal(problem(gold), answer, is_exact=False)
    assert f1(problem(gold), answer) == 1.0


def test_choices_that_are_signs_are_told_apart() -> None:
    asked = problem("B", choices=["<", ">", "-5", "5"])
    assert is_equal(asked, ">", is_exact=False) and not is_equal(asked, "<", is_exact=False)
    assert not is_equal(problem("A", choices=["<", "Rome"]), ">", is_exact=False)


def test_f1_counts_the_words_that_the_best_gold_shares() -> None:
    # SQuAD: precision 1/2, recall 1/3 -> 0.4; the other gold shares nothing
    assert f1(problem("x", answers=["in old Rome", "Paris"]), "Rome yes") == pytest.approx(0.4)
    assert f1(problem("x", answers=["the", "old Rome"]), "Rome") == pytest.approx(2 / 3)
    assert f1(problem("Rome"), "the") == 0.0
    assert golds(problem("x", answers=["a", "b"])) == ["a", "b"]


@pytest.fixture(scope="module")
def verifier() -> Iterator[Verifier]:
    with Verifier(VerifierConfig(workers=1)) as started:
        yield started


def test_outcomes_of_texts_and_open_questions(verifier: Verifier) -> None:
    asked = [
        (problem("Rome"), "It is \\boxed{rome}.", "stop", Outcome.PASSED),
        (problem("Rome"), "It is \\boxed{Paris}.", "stop", Outcome.WRONG_ANSWER),
        (problem("Rome"), "It is Rome.", "stop", Outcome.NO_ANSWER),
        (problem(None, "open"), "<think>hm</think> A poem.", "stop", Outcome.OPEN),
        (problem(None, "open"), "<think>hm", "stop", Outcome.NO_ANSWER),
        (problem(None, "open"), "A poe", "length", Outcome.TRUNCATED),
    ]
    verdicts = verifier.verify([p for p, *_ in asked], [t for _, t, *_ in asked], [r for *_, r, _ in asked])
    assert [verdict.outcome for verdict in verdicts] == [outcome for *_, outcome in asked]
    assert verdicts[3].answer == "A poem."
    assert [verdict.reward for verdict in verdicts] == [1.0, 0.0, 0.0, None, 0.0, 0.0]


def poem_length(asked: dict[str, Any], response: str, verdict: dict[str, Any]) -> float:
    """A reward of the row's own column."""
    return min(1.0, len(response.split()) / int(asked["words"]))


def test_an_open_question_earns_what_the_reward_says_and_sees_its_own_columns(verifier: Verifier) -> None:
    reward = RewardConfig(function=f"{__name__}:poem_length", right_from=0.5)
    rows = [problem(None, "open", words=4), problem(None, "open", words=4)]
    with Judges(VerifierConfig(workers=1), reward, 10, verifier) as judges:
        found = list(judges.stream(rows, ["one two", "one"], ["stop", "stop"], [2, 1]))
    assert [verdict.reward for verdict in found] == [0.5, 0.25]
    assert [verdict.row("r", 0.5)["correct"] for verdict in found] == [True, False]
    assert [verdict.row("r", 0.5)["outcome"] for verdict in found] == ["open", "open"]


def test_the_f1_part_grades_texts(verifier: Verifier) -> None:
    reward = RewardConfig.model_validate({"parts": {"f1": 1.0}})
    with Judges(VerifierConfig(workers=1, answer="whole"), reward, 10) as judges:
        found = list(judges.stream([problem("old Rome")] * 3, ["Rome", "old Rome", ""], ["stop"] * 3, [1, 2, 0]))
    assert [verdict.reward for verdict in found] == [pytest.approx(2 / 3), 1.0, 0.0]

"""Which answer to a maths problem counts (`verifier.answer`), also where a person's pattern never ends."""

import time
from typing import Any

import pytest

from oapl_core.errors import ConfigError, StageFailed
from oapl_core.settings.experiment_file import parse_as
from oapl_core.settings.verifier import VerifierConfig
from oapl_core.verdicts.answers.kinds import MathsAnswers
from oapl_core.verdicts.outcomes import Outcome
from oapl_core.verdicts.verifier import Verifier

SLOW = {"regex": r"^(a+)+$"}
SIX: dict[str, Any] = {"problem_id": "p", "kind": "math", "answer": "6", "tests": [], "entry_point": None}
STEPS = "5 + 1 = 6, and \\boxed{6}.\n#### 6\nThe answer is 6.\n\nNext: \\boxed{7}\n#### 7\nThe answer is 7."
CASES: list[tuple[Any, str, str | None]] = [
    ("last-box", STEPS, "7"),
    ("first-box", STEPS, "6"),
    ("first-box", "\\boxed{} \\boxed{3} and \\boxed{5}, so \\boxed{8}", "3, 5"),
    ("first-box", "6", None),
    ("hash", STEPS, "6"),
    ("hash", "#### $1,234 \nso", "$1,234"),
    ("hash", "6 ####\n6", None),
    ("hash", "####" + "1" * 600, None),
    ("number", "He had 3 and got 1,234.50 more.", "1,234.50"),
    ("number", "it is -3", "-3"),
    ("number", "it is 9-3", "3"),
    ("number", "about .5!", ".5"),
    ("number", "1,2345", "2345"),
    ("number", "none", None),
    ({"after": "The answer is"}, STEPS, "6."),
    ({"after": "The answer is"}, "6", None),
    ({"regex": r"Next: \\boxed\{(\d)"}, STEPS, "7"),
    ({"regex": r"(?s:.*)is (\d+)"}, STEPS, "7"),
    ({"regex": r"\d+"}, STEPS, "5"),
    ({"regex": r"x(y)?"}, "x", None),
]


@pytest.fixture(scope="module")
def pool() -> Any:
    from oapl_core.verdicts.workers.maths_pool import MathsPool

    started = MathsPool(1)
    yield started
    started.close()


@pytest.mark.parametrize(("rule", "text", "answer"), CASES)
def test_each_rule_takes_its_answer(pool: Any, rule: Any, text: str, answer: str | None) -> None:
    answers = MathsAnswers(VerifierConfig(answer=rule), 1)
    answers.pool = pool
    thought = f"<think>{STEPS}\\boxed{{9}} #### 9</think>{text}"
    for response in (text, thought):
        assert answers.answer(SIX, response, is_cut=False) == answer


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"regex": "(6"}, "`answer`: is not a regular expression: missing \\)"),
        ({"regex": " "}, "`answer`: write one of last-box, first-box, hash, number, whole, {regex"),
        ({"regex": "6", "after": "7"}, "`answer`: write one of"),
        ("box", "`answer`: write one of"),
        (7, "`answer`: write one of"),
    ],
)
def test_a_rule_that_is_none_is_one_line(rule: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        parse_as(VerifierConfig, {"answer": rule}, "test")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("rule", ["hash", {"regex": r"#### (\S+)"}])
def test_the_verifier_judges_by_the_rule_and_its_canaries_all_the_same(rule: Any) -> None:
    with Verifier(VerifierConfig(answer=rule, workers=1)) as verifier:
        verifier.check_canaries({"math"})
        texts = ["so #### 6", "so #### 7", "so \\boxed{6}"]
        found = [verdict.outcome for verdict in verifier.verify([SIX] * 3, texts, ["stop", "stop", "length"])]
    assert found == [Outcome.PASSED, Outcome.WRONG_ANSWER, Outcome.TRUNCATED]


def test_a_pattern_that_never_ends_is_ended_and_said_in_one_line() -> None:
    start = time.monotonic()
    with Verifier(VerifierConfig(answer=SLOW, workers=1)) as verifier:
        answers = verifier._answers("math")
        assert isinstance(answers, MathsAnswers)
        answers.pool.cpu_s = 0.5
        (once,) = verifier.verify([SIX], ["a" * 60 + "!"], ["stop"])
        assert once.outcome is Outcome.VERIFIER_ERROR
        assert "more than 0.5 s" in str(once.excerpt)
        assert verifier.verify([SIX], ["aaa"], ["stop"])[0].answer == "aaa"
        with pytest.raises(StageFailed, match=r"verifier.answer: .* on 3 of 4; make it simpler"):
            verifier.verify([SIX] * 9, ["a" * 60 + "!"] * 9, ["stop"] * 9)
    assert time.monotonic() - start < 60

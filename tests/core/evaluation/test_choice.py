"""choice: counting, the best epoch, and what the ledger says."""

from typing import Any

import pytest

from oapl_core.evaluation.choice import best, counts, mean_reward, measures


def answers(problem: str, *rewards: float | None) -> list[dict[str, Any]]:
    return [{"problem_id": problem, "reward": reward, "policy_hash": "abc"} for reward in rewards]


def test_an_answer_that_could_not_be_judged_is_neither_right_nor_wrong() -> None:
    assert counts([*answers("a", 1.0, None, 0.0), *answers("b", None)]) == {"a": (2, 1), "b": (0, 0)}
    assert mean_reward(answers("a", 1.0, None, 0.0)) == 0.5


def test_problems_weigh_the_same_however_many_answers_were_judged() -> None:
    assert mean_reward([*answers("a", 1.0, 1.0, 1.0, 1.0), *answers("b", 0.0, None)]) == 0.5


def test_nothing_judged_is_an_error() -> None:
    with pytest.raises(ValueError, match="no answer has a verdict"):
        mean_reward(answers("a", None))


def test_the_best_epoch_has_the_highest_mean_and_of_equals_the_first() -> None:
    worse, good, same = answers("a", 0.0, 0.0), answers("a", 1.0, 0.0), answers("a", 0.0, 1.0)
    assert best({"1": worse, "2": good, "3": same}) == "2"
    assert best({"3": same, "2": good}) == "3"


def test_measures_cover_every_k_and_count_the_unjudged() -> None:
    found = measures([*answers("a", *[1.0] * 4, *[0.0] * 12), *answers("b", *[0.0] * 15, None)], 200, 0)
    assert list(found["pass_at_k"]) == [str(k) for k in range(1, 17)]
    assert found["pass_at_k"]["1"][0] == pytest.approx((0.25 + 0) / 2)
    assert found["pass_at_k"]["16"][0] == 1.0, "only the problem with 16 verdicts counts for pass@16"
    assert (found["problems"], found["answers"], found["verifier_errors"]) == (2, 32, 1)
    for mean, low, high in found["pass_at_k"].values():
        assert 0 <= low <= mean <= high <= 1

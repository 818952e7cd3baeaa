"""Pass rates and their differences, from evaluation rows."""

import polars as pl
import pytest

from oapl_core.evaluation.scores import Resampling, difference, score, shown_ks
from oapl_core.tables import is_correct

RESAMPLING = Resampling(200, 0)


def rows(rewards_by_problem: dict[str, list[float | None]], checkpoint: str = "base") -> pl.DataFrame:
    """Evaluation rows, as far as they are looked at."""
    answers = [
        {
            "checkpoint": checkpoint,
            "policy_hash": "h",
            "problem_id": problem,
            "reward": reward,
            "correct": is_correct(reward),
            "finish_reason": "stop" if reward else "length",
        }
        for problem, rewards in rewards_by_problem.items()
        for reward in rewards
    ]
    return pl.DataFrame(answers, schema_overrides={"reward": pl.Float32, "correct": pl.Boolean})


def test_a_verifier_error_counts_neither_as_right_nor_as_wrong() -> None:
    (one,) = score(rows({"a": [1.0, None], "b": [0.0, 1.0]}), RESAMPLING)
    estimate = one.pass_at(1)
    assert estimate is not None
    assert estimate.mean == pytest.approx(0.75)
    assert (one.verifier_errors, one.answers, one.truncated) == (1, 4, 2)


def test_pass_at_k_leaves_out_problems_with_fewer_judged_answers_and_says_so() -> None:
    (one,) = score(rows({"a": [1.0, None], "b": [0.0, 1.0]}), RESAMPLING)
    estimate = one.pass_at(2)
    assert estimate is not None
    assert (estimate.mean, estimate.problems, one.problems) == (1.0, 1, 2)


def test_pass_at_more_than_was_sampled_is_unknown() -> None:
    (one,) = score(rows({"a": [1.0]}), RESAMPLING)
    assert one.pass_at(2) is None


def test_nothing_judged_gives_no_estimate() -> None:
    (one,) = score(rows({"a": [None, None]}), RESAMPLING)
    assert (one.samples, one.pass_at(1)) == (0, None)


def test_checkpoints_keep_their_order() -> None:
    frame = pl.concat([rows({"a": [1.0]}, "z"), rows({"a": [1.0]}, "b")])
    assert [s.checkpoint for s in score(frame, RESAMPLING)] == ["z", "b"]


def test_difference_is_paired_by_problem() -> None:
    """Every problem gains exactly a half: no spread, however different the problems are."""
    (before,) = score(rows({"a": [0.0, 0.0], "b": [1.0, 0.0]}), RESAMPLING)
    (after,) = score(rows({"b": [1.0, 1.0], "a": [0.0, 1.0]}), RESAMPLING)
    change = difference(before, after, 1)
    assert change is not None
    assert (change.change.mean, change.change.low, change.change.high) == (0.5, 0.5, 0.5)


def test_difference_is_over_shared_problems_only() -> None:
    (before,) = score(rows({"a": [0.0, 0.0], "b": [1.0, None]}), RESAMPLING)
    (after,) = score(rows({"a": [1.0, 1.0], "b": [1.0, 1.0]}), RESAMPLING)
    change = difference(before, after, 2)
    assert change is not None
    assert (change.first, change.second, change.change.problems) == (0.0, 1.0, 1)


def test_difference_of_checkpoints_without_a_shared_problem_is_unknown() -> None:
    (before,) = score(rows({"a": [0.0]}), RESAMPLING)
    (after,) = score(rows({"b": [0.0]}), RESAMPLING)
    assert difference(before, after, 1) is None


@pytest.mark.parametrize(("samples", "ks"), [(16, (1, 4, 16)), (4, (1, 4)), (2, (1, 2)), (1, (1,)), (0, ())])
def test_the_table_shows_only_k_that_were_sampled(samples: int, ks: tuple[int, ...]) -> None:
    assert shown_ks(samples) == ks

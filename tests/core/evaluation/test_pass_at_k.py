"""pass@k against its definition, known values and limits; intervals against what a bootstrap must do."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oapl_core.evaluation.pass_at_k import bootstrap_interval, estimate, pass_at_k


def brute_force(n: int, c: int, k: int) -> float:
    """Share of all sets of k answers that contain a right one."""
    sets = list(combinations([True] * c + [False] * (n - c), k))
    return sum(any(s) for s in sets) / len(sets)


@pytest.mark.parametrize("n", range(1, 13))
def test_it_is_the_share_of_sets_with_a_right_answer(n: int) -> None:
    for c in range(n + 1):
        for k in range(1, n + 1):
            assert pass_at_k(n, c, k) == pytest.approx(brute_force(n, c, k), abs=1e-12)


@pytest.mark.parametrize(
    ("n", "c", "k", "value"),
    [(16, 0, 1, 0.0), (16, 4, 1, 0.25), (16, 1, 16, 1.0), (10, 3, 5, 1 - 21 / 252), (4, 4, 2, 1.0)],
)
def test_known_values(n: int, c: int, k: int, value: float) -> None:
    assert pass_at_k(n, c, k) == pytest.approx(value, abs=1e-12)


def test_it_stays_exact_for_many_answers() -> None:
    assert pass_at_k(10_000, 1, 100) == pytest.approx(0.01, abs=1e-12)


@pytest.mark.parametrize(("n", "c", "k"), [(4, 1, 5), (0, 0, 1), (4, 1, 0), (4, 5, 1), (4, -1, 1)])
def test_what_has_no_estimate_is_an_error_and_not_one(n: int, c: int, k: int) -> None:
    with pytest.raises(ValueError):
        pass_at_k(n, c, k)


@given(st.integers(2, 40), st.data())
def test_it_rises_with_k_and_with_right_answers(n: int, data: st.DataObject) -> None:
    c, k = data.draw(st.integers(0, n - 1)), data.draw(st.integers(1, n - 1))
    assert pass_at_k(n, c, k) <= pass_at_k(n, c, k + 1) + 1e-12
    assert pass_at_k(n, c, k) <= pass_at_k(n, c + 1, k) + 1e-12


def test_it_is_unbiased() -> None:
    """The mean over samples of n answers is the chance that k fresh answers hold a right one."""
    right = np.random.default_rng(0).binomial(8, 0.3, size=20_000)
    assert np.mean([pass_at_k(8, int(c), 3) for c in right]) == pytest.approx(1 - 0.7**3, abs=0.005)


def test_the_mean_is_over_problems_with_enough_answers() -> None:
    found = estimate([(4, 4), (4, 0), (1, 1)], 2, 100, 0)
    assert found.mean == 0.5
    assert found.problems == 2
    assert found.low <= found.mean <= found.high


def test_no_problem_with_enough_answers_is_an_error() -> None:
    with pytest.raises(ValueError, match="pass@5"):
        estimate([(4, 1), (3, 3)], 5, 10, 0)


def test_the_interval_depends_on_the_seed_alone() -> None:
    values = list(np.random.default_rng(1).random(50))
    assert bootstrap_interval(values, 500, 7) == bootstrap_interval(values, 500, 7)
    assert bootstrap_interval(values, 500, 7) != bootstrap_interval(values, 500, 8)


def test_equal_problems_leave_no_doubt() -> None:
    assert bootstrap_interval([0.25] * 30, 200, 0) == (0.25, 0.25)


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    draw, covered = np.random.default_rng(2), 0
    for trial in range(300):
        low, high = bootstrap_interval(list(draw.binomial(1, 0.4, size=80).astype(float)), 400, trial)
        covered += low <= 0.4 <= high
    assert 0.90 <= covered / 300 <= 0.98


def test_the_interval_narrows_with_the_root_of_the_problems() -> None:
    draw = np.random.default_rng(3)
    width = [np.diff(bootstrap_interval(list(draw.random(n)), 2000, 0))[0] for n in (100, 400)]
    assert width[0] / width[1] == pytest.approx(2, rel=0.25)

"""The hierarchical bootstrap: cases computed by hand, and data whose variance is known."""

import numpy as np
import pytest

from bench.claims.bootstrap import difference, estimate


def test_one_base_and_seed_is_a_bootstrap_over_problems() -> None:
    values = [0.0] * 100 + [1.0] * 300
    found = estimate({("a", 0): values})
    width = 1.96 * (0.75 * 0.25 / 400) ** 0.5
    assert found.mean == 0.75
    assert found.high - found.low == pytest.approx(2 * width, rel=0.06)


def test_bases_weigh_the_same_however_many_seeds_they_have() -> None:
    found = estimate({("a", 0): [0.0], ("a", 1): [0.0], ("a", 2): [0.0], ("b", 0): [1.0]})
    assert found.mean == 0.5
    assert found.by_base == {"a": 0.0, "b": 1.0}
    # a quarter of the resamples draws a base twice
    assert (found.low, found.high) == (0.0, 1.0)


def test_a_base_that_differs_is_drawn_as_a_whole() -> None:
    three = {(base, seed): [value] for base, value in zip("abc", (0.0, 0.0, 1.0), strict=True) for seed in range(2)}
    found = estimate(three)
    # drawn k times of three with chance binomial(3, 1/3): never in 8/27, always in 1/27, so the ends are 0 and 1
    assert found.mean == pytest.approx(1 / 3)
    assert [found.low, found.high] == pytest.approx([0.0, 1.0])


def test_a_difference_forgets_what_two_arms_share() -> None:
    random = np.random.default_rng(0)
    hardness = random.random(500)
    first = {(base, 0): (hardness + shift + 0.1).tolist() for base, shift in zip("abc", (0.0, 0.3, -0.2), strict=True)}
    second = {(base, 0): (hardness + shift).tolist() for base, shift in zip("abc", (0.0, 0.3, -0.2), strict=True)}
    found = difference(first, second)
    assert (found.low, found.mean, found.high) == pytest.approx((0.1, 0.1, 0.1))
    assert estimate(first).high - estimate(first).low > 0.2


def test_a_difference_is_over_the_bases_and_seeds_that_both_have() -> None:
    found = difference({("a", 0): [1.0], ("b", 0): [9.0]}, {("a", 0): [0.5], ("a", 1): [0.0]})
    assert (found.mean, found.by_base) == (0.5, {"a": 0.5})


def test_other_problems_or_none_are_refused() -> None:
    with pytest.raises(ValueError, match="same problems"):
        estimate({("a", 0): [1.0, 0.0], ("b", 0): [1.0]})
    with pytest.raises(ValueError, match="same problems"):
        estimate({})


def test_the_spread_is_that_of_the_data() -> None:
    """Bases, seeds and problems of known variances: that of the mean, and the bootstrap's over many data sets."""
    random = np.random.default_rng(1)
    bases, seeds, problems = 20, 5, 400
    of_base, of_seed, of_problem, noise = 0.3, 0.4, 1.0, 0.5
    expected = of_base**2 / bases + of_seed**2 / bases / seeds + of_problem**2 / problems
    found = []
    for _ in range(20):
        problem = random.normal(0, of_problem, problems)
        cells = {}
        for base in range(bases):
            middle = random.normal(0, of_base)
            for seed in range(seeds):
                level = middle + random.normal(0, of_seed) + problem
                cells[str(base), seed] = (level + random.normal(0, noise, problems)).tolist()
        one = estimate(cells, resamples=500)
        found.append(((one.high - one.low) / 2 / 1.96) ** 2)
    assert np.mean(found) == pytest.approx(expected, rel=0.15)

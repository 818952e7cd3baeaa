"""The hierarchical bootstrap and Student's t: cases computed by hand, and data whose variance is known."""

import numpy as np
import pytest

from bench.claims.bootstrap import difference, estimate, holm, initialisation, t_quantile, t_within


def test_one_base_and_seed_is_a_bootstrap_over_problems() -> None:
    values = [0.0] * 100 + [1.0] * 300
    found = estimate({("a", 0): values})
    width = 1.96 * (0.75 * 0.25 / 400) ** 0.5
    assert found.mean == 0.75
    assert found.high - found.low == pytest.approx(2 * width, rel=0.06)


def test_problems_that_are_alike_are_drawn_together() -> None:
    # nine problems of one set, one of another: half of the resamples have both, a quarter each one alone
    values, alike = [0.0] * 9 + [1.0], [4] * 9 + [7]
    found = estimate({("a", 0): values}, alike=alike)
    assert found.mean == pytest.approx(0.1), "every problem weighs the same"
    shares = {round(float(value), 9): float((found.resampled == value).mean()) for value in set(found.resampled)}
    assert shares == pytest.approx({0.0: 0.25, 0.1: 0.5, 1.0: 0.25}, abs=0.03)
    one_by_one = estimate({("a", 0): values})
    assert one_by_one.high < found.high
    assert estimate({("a", 0): values}, alike=list(range(10))).resampled.tolist() == one_by_one.resampled.tolist()


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


def test_a_base_pretrained_again_is_no_other_initialisation() -> None:
    assert [initialisation(base) for base in ("demo-seed0e", "demo-seed12", "a")] == ["demo-seed0", "demo-seed12", "a"]
    once = {(f"demo-seed{i}", 0): [value] for i, value in enumerate((0.0, 0.3, 0.9))}
    twice = once | {(f"{base}e", seed): values for (base, seed), values in once.items()}
    first, second = estimate(once), estimate(twice)
    assert [second.mean, *second.t_interval] == pytest.approx([first.mean, *first.t_interval])
    assert len(second.by_base) == 6
    # the ends are those of a resample that draws one initialisation alone: six bases would hardly ever do that
    assert [second.low, second.high] == pytest.approx([0.0, 0.9])
    six = estimate({(f"demo-seed{i}", 0): values for i, values in enumerate(twice.values())})
    assert six.high < 0.89


def test_student_is_that_of_the_tables() -> None:
    found = [round(t_quantile(freedom), 3) for freedom in (1, 2, 3, 4, 5, 10, 30)]
    assert found == [12.706, 4.303, 3.182, 2.776, 2.571, 2.228, 2.042]
    assert t_within(2.015, 5) == pytest.approx(0.9, abs=1e-4)


def test_the_interval_by_t_is_over_the_means_of_initialisations() -> None:
    found = estimate({("a", 0): [0.1, 0.3], ("b", 0): [0.3, 0.3], ("c", 0): [0.4, 0.4]})
    half = 4.3027 * (0.1**2 / 3) ** 0.5
    assert found.t_interval == pytest.approx((0.3 - half, 0.3 + half), abs=1e-4)
    assert found.shown() == "30.0 (16.7 to 40.0; t 5.2 to 54.8)"
    low, high = found.t_interval
    assert found.p_of_t(low) == pytest.approx(0.05, abs=1e-4) == pytest.approx(found.p_of_t(high), abs=1e-4)
    alone = estimate({("a", 0): [0.1, 0.3]})
    assert (alone.p_of_t(), "t" in alone.shown().replace("to", "")) == (1.0, False)


def test_the_bootstraps_probability_is_twice_the_smaller_side_and_never_0() -> None:
    found = estimate({(base, 0): [value] for base, value in zip("abc", (0.0, 0.0, 1.0), strict=True)})
    # every draw of three is a or b in 8/27; none lies below -1
    assert found.p_of_bootstrap(0.0) == pytest.approx(2 * 8 / 27, abs=0.04)
    assert found.p_of_bootstrap(-1.0) == 2 / 4001


def test_holm_multiplies_by_what_is_left_and_keeps_the_order() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.7]) == [1.0, 1.0]


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

"""pass@k: the chance that one of k answers, drawn from n without replacement, is right (arXiv 2107.03374, eq. 1).

Pure: reads and writes nothing. A problem is the unit of everything: its estimate first, then the mean over problems,
then an interval from resampling problems. Shapes: P problems, K values of k, R resamples.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    FloatArray = npt.NDArray[np.float64]


def pass_at_k(n: int, c: int, k: int) -> float:
    """The unbiased estimate 1 - C(n-c, k) / C(n, k) for one problem with ``c`` right answers out of ``n``.

    Raises:
        ValueError: k is larger than n (the estimate does not exist, it is not 1), or the counts make no sense.
    """
    if not 0 <= c <= n:
        raise ValueError(f"{c} right answers out of {n}")
    if not 1 <= k <= n:
        raise ValueError(f"pass@{k} needs at least {k} answers to each problem, there are {n}")
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


@dataclass(frozen=True)
class Estimate:
    """A mean over problems with its 95 % bootstrap interval."""

    mean: float
    low: float
    high: float
    problems: int
    """Problems in the mean: those with at least k judged answers."""


def estimate(counts: Sequence[tuple[int, int]], k: int, resamples: int, seed: int) -> Estimate:
    """Mean pass@k over problems, given (n, c) of each; problems with fewer than k judged answers are left out.

    Raises:
        ValueError: no problem has k judged answers.
    """
    values = [pass_at_k(n, c, k) for n, c in counts if n >= k]
    if not values:
        raise ValueError(f"pass@{k}: no problem has {k} judged answers")
    return mean_estimate(values, resamples, seed)


def mean_estimate(values_P: Sequence[float], resamples: int, seed: int) -> Estimate:
    """Mean of one number for each problem, at least one: a pass@k, or the paired difference of two."""
    low, high = bootstrap_interval(values_P, resamples, seed)
    return Estimate(math.fsum(values_P) / len(values_P), low, high, len(values_P))


def bootstrap_interval(
    values_P: Sequence[float], resamples: int, seed: int, level: float = 0.95
) -> tuple[float, float]:
    """Percentile interval of the mean over problems drawn with replacement; the same seed gives the same interval."""
    import numpy as np

    values = np.asarray(values_P, dtype=np.float64)
    problems = len(values)
    draws_RP = np.random.default_rng(seed).multinomial(problems, np.full(problems, 1 / problems), size=resamples)
    means_R: FloatArray = draws_RP @ values / problems
    low, high = np.quantile(means_R, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)

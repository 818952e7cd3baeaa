"""One hierarchical bootstrap over initialisation, repeat and problem, and Student's t beside it. Reads, writes nothing.

A resample draws as many initialisations as there are, with replacement; for each one drawn as many of its runs (seeds
of training, and bases pretrained again from it); and as many problems, the same ones for every run, since all answer
the same problems. The statistic is the mean over the initialisations drawn of the mean over their runs of the mean over
the problems. A difference is taken within a run on the same problems before anything is drawn, so that what two arms
share takes no part in it.

Two bases of one seed are no two initialisations: ``demo-seed0e`` was pretrained by the command and seed of
``demo-seed0`` on another day, and differs in the last digits alone.

With B initialisations the variance between them comes out (B - 1)/B of what it is, as in every bootstrap, and its
percentiles are those of a normal distribution. Student's t over the B means, with B - 1 degrees of freedom, has neither
fault: of three it is up to 2.7 times as wide. It says nothing of other problems, as all initialisations answer the same
ones. A page therefore shows both, and every base by itself.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import atan, cos, inf, pi, sin, sqrt
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Values = NDArray[np.float64]

RESAMPLES, SEED = 4000, 20260222

Cells = Mapping[tuple[str, int], Sequence[float]]
"""A number of each problem, in the same order everywhere, by base and seed."""


def initialisation(base: str) -> str:
    """Name of the initialisation and order of data that a base was pretrained from: its name without a letter behind
    the seed.
    """
    return re.sub(r"(?<=\d)[a-z]$", "", base)


@dataclass(frozen=True)
class Estimate:
    """A mean with its 95 % percentile interval."""

    mean: float
    low: float
    high: float
    by_base: dict[str, float]
    by_start: dict[str, float]
    """By initialisation."""
    resampled: "Values" = field(repr=False, compare=False)

    def shown(self, digits: int = 1, sign: str = "", scale: float = 100.0) -> str:
        """In percent, for a table: the mean, its percentile interval, and the t-interval if there is one."""
        low, high = (scale * end for end in self.t_interval)
        by_t = f"; t {low:{sign}.{digits}f} to {high:{sign}.{digits}f}" if low > -inf else ""
        return " ".join(
            (
                f"{scale * self.mean:{sign}.{digits}f}",
                f"({scale * self.low:{sign}.{digits}f} to {scale * self.high:{sign}.{digits}f}{by_t})",
            )
        )

    @property
    def _deviation(self) -> float:
        """Standard error of the mean over initialisations."""
        values = list(self.by_start.values())
        return float(np.std(values, ddof=1)) / sqrt(len(values)) if len(values) > 1 else inf

    @property
    def t_interval(self) -> tuple[float, float]:
        """The 95 % interval by Student's t over initialisations; of one it is everything."""
        if len(self.by_start) < 2:
            return -inf, inf
        half = t_quantile(len(self.by_start) - 1) * self._deviation
        return self.mean - half, self.mean + half

    def p_of_t(self, null: float = 0.0) -> float:
        """Two-sided, of the mean being ``null``; of one initialisation 1."""
        away = abs(self.mean - null)
        if len(self.by_start) < 2 or away == 0:
            return 1.0
        return 1 - t_within(away / self._deviation, len(self.by_start) - 1) if self._deviation else 0.0

    def p_of_bootstrap(self, null: float = 0.0) -> float:
        """Two-sided share of resamples beyond ``null``; one more is counted, so it is never 0."""
        below, above = int((self.resampled <= null).sum()), int((self.resampled >= null).sum())
        return min(1.0, 2 * (min(below, above) + 1) / (len(self.resampled) + 1))


def t_within(t: float, freedom: int) -> float:
    """The probability that Student's t lies between -``t`` and ``t`` (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    angle = atan(t / sqrt(freedom))
    is_odd = freedom % 2
    term = total = cos(angle) if is_odd else 1.0
    for i in range(2 + is_odd, freedom - 1, 2):
        term *= (i - 1) / i * cos(angle) ** 2
        total += term
    if not is_odd:
        return sin(angle) * total
    return 2 / pi * (angle + (sin(angle) * total if freedom > 1 else 0.0))


@lru_cache
def t_quantile(freedom: int, within: float = 0.95) -> float:
    """The t between whose negative and itself ``within`` lies, by halving."""
    low, high = 0.0, 1000.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if t_within(middle, freedom) < within else (low, middle)
    return high


def holm(probabilities: Sequence[float]) -> list[float]:
    """Holm's correction: each probability times how many are not smaller, and never below a smaller one's."""
    order = sorted(range(len(probabilities)), key=probabilities.__getitem__)
    found, last = [0.0] * len(order), 0.0
    for rank, at in enumerate(order):
        last = max(last, min(1.0, probabilities[at] * (len(order) - rank)))
        found[at] = last
    return found


def estimate(
    cells: Cells, resamples: int = RESAMPLES, seed: int = SEED, alike: Sequence[int] | None = None
) -> Estimate:
    """Mean over initialisations, their runs, and problems.

    ``alike`` gives each problem the number of its set, where problems of one set are alike: then sets are drawn, each
    with all of its problems, and a problem weighs as much as any other.

    Raises:
        ValueError: there is nothing, or runs answer different numbers of problems.
    """
    sizes = {len(values) for values in cells.values()}
    if len(sizes) != 1:
        raise ValueError(f"every base and seed needs the same problems, these have {sorted(sizes)}")
    (problems,) = sizes
    value_CP = np.array([cells[key] for key in sorted(cells)], dtype=np.float64)
    bases = [base for base, _ in sorted(cells)]
    starts = [initialisation(base) for base in bases]
    weight_RC, drawn_RP = _draws(tuple(starts), tuple(alike or range(problems)), resamples, seed)
    means_R = np.einsum("rc,rc->r", weight_RC, drawn_RP @ value_CP.T)
    by_base, by_start = (_means(value_CP, names) for names in (bases, starts))
    low, high = np.quantile(means_R, [0.025, 0.975])
    return Estimate(float(np.mean(list(by_start.values()))), float(low), float(high), by_base, by_start, means_R)


def _means(value_CP: "Values", names: Sequence[str]) -> dict[str, float]:
    return {name: float(value_CP[[one == name for one in names]].mean()) for name in dict.fromkeys(names)}


def difference(first: Cells, second: Cells, resamples: int = RESAMPLES, seed: int = SEED) -> Estimate:
    """The first minus the second, over the bases and seeds that both have."""
    return estimate(paired(first, second), resamples, seed)


def paired(first: Cells, second: Cells) -> dict[tuple[str, int], list[float]]:
    """Each problem's difference, for the bases and seeds that both have."""
    shared = [key for key in first if key in second]
    return {key: [a - b for a, b in zip(first[key], second[key], strict=True)] for key in shared}


@lru_cache(maxsize=8)  # a page asks for the same draws a hundred times
def _draws(starts: tuple[str, ...], alike: tuple[int, ...], resamples: int, seed: int) -> "tuple[Values, Values]":
    """How much runs and problems weigh in each resample, [R, C] and [R, P]."""
    random = np.random.default_rng(seed)
    weight_RC = _weights(starts, resamples, random)
    sets, set_P = np.unique(alike, return_inverse=True)
    drawn_RP = random.multinomial(len(sets), np.full(len(sets), 1 / len(sets)), size=resamples)[:, set_P]
    return weight_RC, drawn_RP / drawn_RP.sum(1, keepdims=True)


def _weights(starts: Sequence[str], resamples: int, random: np.random.Generator) -> "Values":
    """How much each run weighs in each resample, by its initialisation, [R, C]; rows add up to 1."""
    names = list(dict.fromkeys(starts))
    weight_RC = np.zeros((resamples, len(starts)))
    for _ in names:
        start_R = random.integers(len(names), size=resamples)
        for number, name in enumerate(names):
            own_R, own_C = np.nonzero(start_R == number)[0], np.nonzero([start == name for start in starts])[0]
            runs = len(own_C)
            drawn_RS = random.multinomial(runs, np.full(runs, 1 / runs), size=len(own_R)) / runs
            weight_RC[np.ix_(own_R, own_C)] += drawn_RS / len(names)
    return weight_RC

"""One hierarchical bootstrap over base model, seed and problem. Reads and writes nothing.

A resample draws as many bases as there are, with replacement; for each base drawn as many of its seeds; and as many
problems, the same ones for every base and seed, since all answer the same problems. The statistic is the mean over the
bases drawn of the mean over their seeds of the mean over the problems. A difference is taken within a base and seed on
the same problems before anything is drawn, so that what two arms share takes no part in it.

With B bases the variance between them comes out (B - 1)/B of what it is, as in every bootstrap: of three bases
intervals are a fifth too narrow in what they say of other bases, and no interval of three is a good one. Each table
therefore shows every base by itself, too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Values = NDArray[np.float64]

RESAMPLES, SEED = 4000, 20260222

Cells = Mapping[tuple[str, int], Sequence[float]]
"""A number of each problem, in the same order everywhere, by base and seed."""


@dataclass(frozen=True)
class Estimate:
    """A mean with its 95 % percentile interval."""

    mean: float
    low: float
    high: float
    by_base: dict[str, float]

    def shown(self, digits: int = 1, sign: str = "") -> str:
        """In percent, for a table."""
        return " ".join(
            (
                f"{100 * self.mean:{sign}.{digits}f}",
                f"({100 * self.low:{sign}.{digits}f} to {100 * self.high:{sign}.{digits}f})",
            )
        )


def estimate(cells: Cells, resamples: int = RESAMPLES, seed: int = SEED) -> Estimate:
    """Mean over bases, seeds and problems.

    Raises:
        ValueError: there is nothing, or bases and seeds answer different numbers of problems.
    """
    sizes = {len(values) for values in cells.values()}
    if len(sizes) != 1:
        raise ValueError(f"every base and seed needs the same problems, these have {sorted(sizes)}")
    (problems,) = sizes
    value_CP = np.array([cells[key] for key in sorted(cells)], dtype=np.float64)
    bases = [base for base, _ in sorted(cells)]
    weight_RC, drawn_RP = _draws(tuple(bases), problems, resamples, seed)
    means_R = np.einsum("rc,rc->r", weight_RC, drawn_RP @ value_CP.T)
    by_base = {base: float(value_CP[[b == base for b in bases]].mean()) for base in dict.fromkeys(bases)}
    low, high = np.quantile(means_R, [0.025, 0.975])
    return Estimate(float(np.mean(list(by_base.values()))), float(low), float(high), by_base)


def difference(first: Cells, second: Cells, resamples: int = RESAMPLES, seed: int = SEED) -> Estimate:
    """The first minus the second, over the bases and seeds that both have."""
    shared = [key for key in first if key in second]
    paired = {key: np.asarray(first[key], dtype=np.float64) - np.asarray(second[key]) for key in shared}
    return estimate({key: values.tolist() for key, values in paired.items()}, resamples, seed)


@lru_cache(maxsize=8)  # a page asks for the same draws a hundred times
def _draws(bases: tuple[str, ...], problems: int, resamples: int, seed: int) -> "tuple[Values, Values]":
    """How much bases and problems weigh in each resample, [R, C] and [R, P]."""
    random = np.random.default_rng(seed)
    weight_RC = _weights(bases, resamples, random)
    return weight_RC, random.multinomial(problems, np.full(problems, 1 / problems), size=resamples) / problems


def _weights(bases: Sequence[str], resamples: int, random: np.random.Generator) -> "Values":
    """How much each base and seed weighs in each resample, [R, C]; rows add up to 1."""
    names = list(dict.fromkeys(bases))
    weight_RC = np.zeros((resamples, len(bases)))
    for _ in names:
        base_R = random.integers(len(names), size=resamples)
        for number, name in enumerate(names):
            own_R, own_C = np.nonzero(base_R == number)[0], np.nonzero([base == name for base in bases])[0]
            seeds = len(own_C)
            drawn_RS = random.multinomial(seeds, np.full(seeds, 1 / seeds), size=len(own_R)) / seeds
            weight_RC[np.ix_(own_R, own_C)] += drawn_RS / len(names)
    return weight_RC

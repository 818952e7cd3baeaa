"""Two checkpoints on the same problems: the difference with a paired interval, and who is better where. Pure.

Problems are resampled, and a problem brings both checkpoints' answers with it: what makes it hard for both takes no
part in the difference, so the interval is narrower than those of the two alone would suggest.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from oapl_core.evaluation.measures import Counts, Row, counts
from oapl_core.evaluation.pass_at_k import mean_estimate, pass_at_k


@dataclass(frozen=True)
class Comparison:
    """The second checkpoint against the first, over the problems where both have at least k judged answers."""

    k: int
    problems: int
    difference: float
    """Mean over problems of pass@k of the second minus that of the first."""
    low: float
    high: float
    """95 %, from resampling problems."""
    better: float
    """Share of problems where the second's is higher."""
    worse: float
    """Share of problems where it is lower."""


def compare(first: Counts, second: Counts, k: int, resamples: int, seed: int) -> Comparison:
    """Compare (n, c) by problem of two checkpoints.

    Raises:
        ValueError: they have no problem in common with k judged answers each.
    """
    shared = [problem for problem in first if problem in second and min(first[problem][0], second[problem][0]) >= k]
    if not shared:
        raise ValueError(f"no problem has {k} judged answers of both checkpoints")
    changes = [pass_at_k(*second[problem], k) - pass_at_k(*first[problem], k) for problem in shared]
    mean, size = mean_estimate(changes, resamples, seed), len(changes)
    return Comparison(
        k,
        size,
        mean.mean,
        mean.low,
        mean.high,
        sum(change > 0 for change in changes) / size,
        sum(change < 0 for change in changes) / size,
    )


def comparisons(
    rows_by_label: Mapping[str, Sequence[Row]], ks: Sequence[int], resamples: int, seed: int
) -> list[dict[str, Any]]:
    """Every pair of checkpoints, the earlier named first, at each k where they can be compared."""
    found = []
    known = {label: counts(rows) for label, rows in rows_by_label.items()}
    for first, second in combinations(known, 2):
        for k in ks:
            try:
                result = compare(known[first], known[second], k, resamples, seed)
            except ValueError:
                continue
            numbers = {name: round(value, 6) for name, value in result.__dict__.items()}
            found.append({"first": first, "second": second, **numbers})
    return found

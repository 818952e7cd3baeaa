"""Measures of judged answers: pass@k, avg@n and differences with intervals, tables, lengths, what went wrong.

Pure arithmetic on rows of tables.EVALUATIONS. The rules, in words:

- An answer that could not be judged (``verifier_error``) is missing, not wrong: its problem has one answer less.
- A problem with n < k judged answers has no pass@k; it is left out of that mean, whose number of problems is given.
- A problem without any judged answer is in no mean, and counted.
- avg@n is the mean over problems of the mean reward of the judged answers. It is the same number as pass@1, unless
  ``[reward]`` gives other rewards than 1 and 0. Then an answer is correct from ``right_from`` on.
- Intervals are 95 %, from resampling problems: what another set of such problems would give.
- ``repeat`` is 95 % of how far avg@n may lie from another n answers to the same problems, in an evaluation that is
  repeated. The variance of a mean is sum (r - mean)^2 / (n (n - 1)) for each problem.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, Literal

from oapl_core.evaluation.pass_at_k import (
    MeanWithInterval,
    counts,
    estimate,
    mean_estimate,
    mean_rewards,
    paired_difference,
    pass_at_k_by_problem,
    rewards,
)
from oapl_core.settings.reward import RewardConfig

Row = Mapping[str, Any]
_EVERY_K = 16
"""Up to here every k is in the curve, then powers of two and n itself."""
_NORMAL_95 = 1.959964


def judged(rows: Iterable[Row]) -> Iterator[tuple[str, bool | None]]:
    """Take what ``counts`` needs."""
    return ((row["problem_id"], row["correct"]) for row in rows)


def _earned(rows: Iterable[Row]) -> Iterator[tuple[str, float | None]]:
    return ((row["problem_id"], row["reward"]) for row in rows)


def mean_reward(rows: Iterable[Row]) -> float:
    """Average the mean reward of the answers over problems (avg@n); problems without a single verdict are left out.

    Raises:
        ValueError: nothing could be judged.
    """
    means = mean_rewards(_earned(rows))
    if not means:
        raise ValueError("no answer has a verdict")
    return math.fsum(means.values()) / len(means)


def measures(
    rows: Sequence[Row], resamples: int, seed: int, ks: Sequence[int] = (), reward: RewardConfig | None = None
) -> dict[str, Any]:
    """Measure one checkpoint on one set of problems; ``ks`` empty: a curve up to the largest n.

    With ``reward`` there is the mean reward's interval too, `reward`, for it is not pass@1.

    Raises:
        ValueError: nothing could be judged, or nothing k times for one of ``ks``.
    """
    pairs = list(counts(judged(rows)).values())
    means = list(mean_rewards(_earned(rows)).values())
    curve = {k: estimate(pairs, k, resamples, seed) for k in ks or curve_of(max(n for n, _ in pairs))}
    outcomes = Counter(str(row["outcome"]) for row in rows)
    return {
        "policy_hash": rows[0]["policy_hash"],
        "problems": len(pairs),
        "problems_without_a_verdict": sum(n == 0 for n, _ in pairs),
        "answers": len(rows),
        "verifier_errors": sum(row["reward"] is None for row in rows),
        "mean_reward": mean_reward(rows),
        **({"reward": _rounded(mean_estimate(means, resamples, seed))} if reward else {}),
        "repeat": repeat_interval(rewards(_earned(rows))),
        "pass_at_k": {str(k): _rounded(e) for k, e in curve.items()},
        "problems_at_k": {str(k): e.problems for k, e in curve.items()},
        "tokens": lengths([row["response_tokens"] for row in rows]),
        "truncated": sum(row["finish_reason"] == "length" for row in rows),
        "outcomes": dict(sorted(outcomes.items())),
    }


def comparisons(
    rows_by_label: Mapping[str, Sequence[Row]],
    ks: Sequence[int],
    resamples: int,
    seed: int,
) -> list[dict[str, Any]]:
    """Compare every pair of checkpoints, the earlier first, at each k that both answered some problem so often."""
    by_label, lines = {label: counts(judged(rows)) for label, rows in rows_by_label.items()}, []
    for (first, one), (second, other) in combinations(by_label.items(), 2):
        for k in ks:
            shares = pass_at_k_by_problem(one, k), pass_at_k_by_problem(other, k)
            pair = paired_difference(*shares, resamples, seed)
            if pair is not None:
                change = pair.change
                numbers = {"difference": change.mean, "low": change.low, "high": change.high}
                numbers |= {"better": pair.better, "worse": pair.worse}
                rounded = {name: round(value, 6) for name, value in numbers.items()}
                lines.append({"first": first, "second": second, "k": k, "problems": change.problems, **rounded})
    return lines


def _rounded(estimate: MeanWithInterval) -> list[float]:
    return [round(value, 6) for value in (estimate.mean, estimate.low, estimate.high)]


def curve_of(largest: int) -> list[int]:
    """Return every k to 16, then powers of two, then ``largest``."""
    # every interval costs a bootstrap: of thousands of answers a curve needs few large k
    powers = [2**e for e in range(_EVERY_K.bit_length(), largest.bit_length())]
    return sorted({*range(1, min(_EVERY_K, largest) + 1), *powers, *([largest] if largest else [])})


def repeat_interval(earned: Mapping[str, Sequence[float]]) -> float:
    """Return half of the interval for the difference between avg@n and that of another n answers to each problem.

    A problem with one judged answer shows no spread; the largest there can be between 0, 1 and the rewards is taken.
    """
    # 0 and 1 always: what rewards were until there were others
    every = [0.0, 1.0, *(reward for mine in earned.values() for reward in mine)]
    largest = (max(every) - min(every)) ** 2 / 4
    # the factor 2: both evaluations vary by their draws, and independently
    spreads = [_spread(mine) if len(mine) > 1 else largest for mine in earned.values()]
    return round(_NORMAL_95 * math.sqrt(2 * math.fsum(spreads)) / len(earned), 6) if earned else 1.0


def _spread(mine: Sequence[float]) -> float:
    """Return the variance of the mean of these rewards."""
    # in this order zeros and ones give c (n - c) exactly; rounding may leave less than 0 of equal ones
    n, total = len(mine), math.fsum(mine)
    return max(0.0, math.fsum(reward * reward for reward in mine) * n - total * total) / (n * n * (n - 1))


def lengths(tokens: Sequence[int]) -> dict[str, float]:
    """Return mean, percentiles and the largest of the answers' lengths. Tokens."""
    import numpy as np

    # inverted_cdf: percentiles are lengths that occur, not points between two of them
    sizes = np.asarray(tokens)
    shown = {f"p{q}": float(np.percentile(sizes, q, method="inverted_cdf")) for q in (10, 50, 90, 99)}
    return {"mean": round(float(sizes.mean()), 3), **shown, "max": float(sizes.max())}


def table(rows: Sequence[Row], labels: Mapping[str, str | None], resamples: int, seed: int) -> list[dict[str, Any]]:
    """Return pass@1 by label of the problems (a difficulty, a platform, a set); ``labels`` maps problem_id to it.

    A line for each label, the largest first; problems without one are ``unknown``. Empty if no problem has any.
    """
    if not any(labels.get(row["problem_id"]) for row in rows):
        return []
    # unlabelled problems get a line too, so that the lines' problems add up
    groups = defaultdict[str, list[Row]](list)
    for row in rows:
        groups[labels.get(row["problem_id"]) or "unknown"].append(row)
    lines = [_line(label, mine, resamples, seed) for label, mine in groups.items()]
    return sorted(lines, key=lambda line: (-line["problems"], line["label"]))


def _line(label: str, rows: Sequence[Row], resamples: int, seed: int) -> dict[str, Any]:
    pairs = list(counts(judged(rows)).values())
    is_judged = any(n for n, _ in pairs)
    return {
        "label": label,
        "problems": len(pairs),
        "answers": len(rows),
        "average": _rounded(estimate(pairs, 1, resamples, seed)) if is_judged else None,
        "mean_tokens": round(sum(row["response_tokens"] for row in rows) / len(rows), 3),
        "truncated": sum(row["finish_reason"] == "length" for row in rows),
    }


# An epoch chosen by the problems that a result is reported on is better there than it will be elsewhere.
WARNING = "chosen on the held-out problems that are reported"
ON = {"validation": "chosen on validation problems", "heldout": WARNING, "last": "the last epoch, nothing was chosen"}
"""Words for the basis of the choice."""


def best(rows_by_label: Mapping[str, Sequence[Row]]) -> str:
    """Return the label with the highest mean reward; of equal ones the first."""
    return max(rows_by_label, key=lambda label: mean_reward(rows_by_label[label]))


def basis(wanted: Literal["validation", "heldout", "last"], has_validation: bool, epochs: int) -> str:
    """Return the basis that really decides. Without validation problems nothing can be chosen on them, and the last
    epoch is taken; of a single epoch held-out problems choose nothing."""
    is_idle = not has_validation if wanted == "validation" else epochs == 1
    return "last" if is_idle else wanted

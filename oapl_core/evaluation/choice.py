"""Pure arithmetic on evaluation rows (tables.EVALUATIONS): answers counted, pass@k with intervals, the epoch chosen."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from oapl_core.evaluation.pass_at_k import estimate

Row = Mapping[str, Any]


def counts(rows: Iterable[Row]) -> dict[str, tuple[int, int]]:
    """(n, c) by problem: answers with a verdict, and right ones. An answer that could not be judged is in neither."""
    n, c = defaultdict[str, int](int), defaultdict[str, int](int)
    for row in rows:
        n[row["problem_id"]] += row["reward"] is not None
        c[row["problem_id"]] += row["reward"] == 1.0
    return {problem: (n[problem], c[problem]) for problem in n}


def mean_reward(rows: Iterable[Row]) -> float:
    """Mean over problems of the share of right answers (pass@1); problems without a single verdict are left out.

    Raises:
        ValueError: nothing could be judged.
    """
    shares = [right / judged for judged, right in counts(rows).values() if judged]
    if not shares:
        raise ValueError("no answer has a verdict")
    return sum(shares) / len(shares)


def best(rows_by_label: Mapping[str, Sequence[Row]]) -> str:
    """The label with the highest mean reward; of equal ones the first."""
    return max(rows_by_label, key=lambda label: mean_reward(rows_by_label[label]))


def measures(rows: Sequence[Row], resamples: int, seed: int) -> dict[str, Any]:
    """What the ledger says about one checkpoint on one split; intervals are 95 %, over problems."""
    by_problem = list(counts(rows).values())
    largest = max(n for n, _ in by_problem)
    curve = {str(k): estimate(by_problem, k, resamples, seed) for k in range(1, largest + 1) if k <= 16 or _is_power(k)}
    return {
        "policy_hash": rows[0]["policy_hash"],
        "problems": len(by_problem),
        "answers": len(rows),
        "verifier_errors": sum(row["reward"] is None for row in rows),
        "mean_reward": mean_reward(rows),
        "pass_at_k": {k: [round(e.mean, 6), round(e.low, 6), round(e.high, 6)] for k, e in curve.items()},
    }


def _is_power(k: int) -> bool:
    return k & (k - 1) == 0

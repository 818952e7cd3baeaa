"""How good each checkpoint was, from the rows of the evaluation; pure.

A problem's n is its judged answers: an answer whose grader broke has no reward and counts neither way. pass@k is the
mean over the problems with n >= k (evaluation/pass_at_k.py has the unbiased estimator and the bootstrap over problems).
The bootstrap's seed is the one of the evaluation, so that ledger and report show the same intervals.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from oapl_core.evaluation.pass_at_k import MeanWithInterval, estimate, mean_estimate, pass_at_k
from oapl_core.seeds import derive_seed
from oapl_core.tables import CORRECT

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True)
class Resampling:
    """How intervals are made: the same resamples for the same seed of the run."""

    resamples: int
    run_seed: int

    @property
    def seed(self) -> int:
        """Seed of the resamples."""
        return derive_seed(self.run_seed, "bootstrap")


@dataclass(frozen=True)
class Score:
    """One checkpoint on one split, or on one kind of its problems."""

    checkpoint: str
    policy_hash: str
    answers: int
    truncated: int
    verifier_errors: int
    judged_P: Mapping[str, tuple[int, int]]
    """problem_id -> (judged answers n, right ones c)."""
    resampling: Resampling

    @property
    def problems(self) -> int:
        """Problems asked."""
        return len(self.judged_P)

    @property
    def samples(self) -> int:
        """The largest n of any problem; 0 if nothing was judged."""
        return max((n for n, _ in self.judged_P.values()), default=0)

    def pass_at(self, k: int) -> MeanWithInterval | None:
        """pass@k with its interval; None if no problem has k judged answers."""
        if k > self.samples:
            return None
        return estimate(list(self.judged_P.values()), k, self.resampling.resamples, self.resampling.seed)


@dataclass(frozen=True)
class Difference:
    """pass@k of two checkpoints over the problems that both answered k times; ``gain`` is paired by problem."""

    k: int
    before: float
    after: float
    gain: MeanWithInterval


def score(rows: "pl.DataFrame", resampling: Resampling) -> list[Score]:
    """One Score for each checkpoint of ``rows`` (tables.EVALUATIONS, one split), in order of first appearance."""
    import polars as pl

    right = (pl.col("reward") >= CORRECT).sum()
    found = []
    for (checkpoint,), mine in rows.group_by("checkpoint", maintain_order=True):
        counts = mine.group_by("problem_id", maintain_order=True).agg(n=pl.col("reward").count(), c=right)
        judged = {problem: (n, c) for problem, n, c in counts.iter_rows()}
        truncated = len(mine.filter(pl.col("finish_reason") == "length"))
        errors = mine["reward"].null_count()
        found.append(Score(str(checkpoint), mine["policy_hash"][0], len(mine), truncated, errors, judged, resampling))
    return found


def difference(before: Score, after: Score, k: int) -> Difference | None:
    """What was gained from ``before`` to ``after``; None if no problem has k judged answers from both."""
    shared = [(before.judged_P[p], after.judged_P[p]) for p in before.judged_P if p in after.judged_P]
    pairs = [(pass_at_k(*b, k), pass_at_k(*a, k)) for b, a in shared if min(b[0], a[0]) >= k]
    if not pairs:
        return None
    gains = [a - b for b, a in pairs]
    gain = mean_estimate(gains, after.resampling.resamples, after.resampling.seed)
    return Difference(k, _mean([b for b, _ in pairs]), _mean([a for _, a in pairs]), gain)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def shown_ks(samples: int) -> tuple[int, ...]:
    """The k of the headline table: 1, 4 and n, as far as there are so many answers."""
    return tuple(sorted({k for k in (1, 4, samples) if 1 <= k <= samples}))

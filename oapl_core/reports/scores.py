"""Scores of each checkpoint, from the rows of the evaluation; pure.

A problem's n is its judged answers: an answer whose verifier broke has no reward and counts neither way. pass@k is the
mean over the problems with n >= k (evaluation/pass_at_k.py has the unbiased estimator and the bootstrap over problems).
The bootstrap's seed is the one of the evaluation, so that ledger and report show the same intervals.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from oapl_core.evaluation.pass_at_k import (
    MeanWithInterval,
    PairedDifference,
    counts,
    estimate,
    mean_estimate,
    mean_rewards,
    paired_difference,
    pass_at_k_by_problem,
)
from oapl_core.seeds import derive_seed
from oapl_core.settings.experiment import Experiment
from oapl_core.settings.reward import RewardConfig

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True)
class Resampling:
    """Rules by which intervals are made (the same resamples for the same seed of the run), and what is correct."""

    resamples: int
    run_seed: int
    reward: RewardConfig | None = None
    """Settings by which verdicts earn rewards; None: the run has no such settings."""

    @classmethod
    def of(cls, config: Experiment) -> Self:
        """Take the resampling of a run from its settings."""
        return cls(config.evaluation.bootstrap_resamples, config.seed, config.reward)

    @property
    def seed(self) -> int:
        """Seed of the resamples: the evaluation's own, so that ledger and report agree."""
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
    """problem_id -> (judged answers n, correct ones c)."""
    resampling: Resampling
    rewards_P: Mapping[str, float] | None = None
    """problem_id -> mean reward of its judged answers, with `[reward]`; without, that is the share of correct ones."""

    @property
    def mean_reward(self) -> MeanWithInterval | None:
        """Over problems with its interval; None without `[reward]`, or if nothing was judged."""
        if not self.rewards_P:
            return None
        return mean_estimate(list(self.rewards_P.values()), self.resampling.resamples, self.resampling.seed)

    @property
    def problems(self) -> int:
        """Number of problems that were asked, judged or not."""
        return len(self.judged_P)

    @property
    def samples(self) -> int:
        """The largest n of any problem; 0 if nothing was judged."""
        return max((n for n, _ in self.judged_P.values()), default=0)

    def pass_at(self, k: int) -> MeanWithInterval | None:
        """Return pass@k with its interval; None if no problem has k judged answers."""
        # asked for before estimate(), which raises: an absent k is a dash in a table
        if k > self.samples:
            return None
        return estimate(list(self.judged_P.values()), k, self.resampling.resamples, self.resampling.seed)


def score(rows: "pl.DataFrame", resampling: Resampling) -> list[Score]:
    """Score each checkpoint of ``rows`` (tables.EVALUATIONS, one split), in order of first appearance."""
    import polars as pl

    return [
        Score(
            str(checkpoint),
            mine["policy_hash"][0],
            answers=len(mine),
            truncated=len(mine.filter(pl.col("finish_reason") == "length")),
            verifier_errors=mine["reward"].null_count(),
            judged_P=counts(mine.select("problem_id", "correct").iter_rows()),
            resampling=resampling,
            rewards_P=mean_rewards(mine.select("problem_id", "reward").iter_rows()) if resampling.reward else None,
        )
        for (checkpoint,), mine in rows.group_by("checkpoint", maintain_order=True)
    ]


def difference(before: Score, after: Score, k: int) -> PairedDifference | None:
    """Estimate pass@k's gain from ``before`` to ``after``, paired by problem; None if both answered none k times."""
    first, second = (pass_at_k_by_problem(one.judged_P, k) for one in (before, after))
    return paired_difference(first, second, after.resampling.resamples, after.resampling.seed)


def shown_ks(samples: int) -> tuple[int, ...]:
    """Return the k of the headline table: 1, 4 and n, as far as there are so many answers."""
    return tuple(sorted({k for k in (1, 4, samples) if 1 <= k <= samples}))

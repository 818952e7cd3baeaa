"""Which rollouts are trained on, decided from keys and verdicts alone; pure.

A row is dropped for the first reason that applies:

    missing_verdict        no verdict part has a row for it
    verifier_error         the verifier could not judge it (outcome ``verifier_error``, or no reward)
    empty_response         no token was sampled
    truncated              it was cut at the token limit                    (truncated = drop)
    fewer_than_two_valid   its group has fewer than two rows left, so no value can be estimated
    no_correct_answer      no row of its group has a reward of 1 or more    (keep = any_correct, mixed)
    all_correct            every row of its group has                       (keep = mixed)

``[reward] right_from`` takes the place of that 1.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from oapl_core.errors import DataError

if TYPE_CHECKING:
    import polars as pl

_GROUP = ("problem_id", "policy_hash")
ROW_REASONS = ("missing_verdict", "verifier_error", "empty_response", "truncated")
GROUP_REASONS = ("fewer_than_two_valid", "no_correct_answer", "all_correct")


@dataclass(frozen=True)
class SelectionCounts:
    """How many rollouts, and groups of them, are kept or dropped."""

    rollouts: int
    groups: int
    kept_rollouts: int
    kept_groups: int
    correct_rollouts: int
    dropped: dict[str, int]
    """Rollouts by reason; with the kept ones they add up to ``rollouts``."""
    dropped_groups: dict[str, int]
    """Groups none of whose rollouts is kept, by the reason of their last rollouts."""

    def __str__(self) -> str:
        """Write one line for a stage's log: kept and dropped."""
        reasons = ", ".join(f"{n} {reason.replace('_', ' ')}" for reason, n in self.dropped.items()) or "none"
        kept = f"kept {self.kept_rollouts} of {self.rollouts} rollouts in {self.kept_groups} of {self.groups} groups"
        return f"{kept}; dropped: {reasons}"


def select(
    keys: "pl.DataFrame", verdicts: "pl.DataFrame", keep: str, truncated: str
) -> "tuple[pl.DataFrame, SelectionCounts]":
    """Choose the rollouts that are trained on.

    Args:
        keys: one row per rollout: rollout_id, problem_id, policy_hash, sample, finish_reason, response_tokens, part
            (its file's number).
        verdicts: rollout_id, reward and correct (null: not judged), outcome.
        keep: ``any_correct``, ``mixed`` or ``all``.
        truncated: ``keep`` or ``drop`` those that were cut.

    Returns:
        The kept rows of ``keys`` with ``reward``, ``correct``, ``group`` (0, 1, ... by first appearance); the counts.

    Raises:
        DataError: a rollout id occurs twice, or a problem's rollouts lie in several parts.
    """
    import polars as pl

    for name, frame in (("rollouts", keys), ("verdicts", verdicts)):
        twice = frame.filter(frame["rollout_id"].is_duplicated())["rollout_id"]
        if len(twice):
            raise DataError(
                f"{name}: rollout {twice[0]} occurs more than once; delete the round's folder and run again"
            )
    split = keys.group_by("problem_id").agg(pl.col("part").n_unique()).filter(pl.col("part") > 1)["problem_id"]
    if len(split):
        raise DataError(f"rollouts: problem {split[0]} lies in several parts; delete the round's folder and run again")
    # Rows get their own reasons first; a group is then judged by those of its rows that have none.
    judged = (
        keys.lazy()
        .with_row_index("row")
        .join(verdicts.lazy().with_columns(judged=pl.lit(True)), on="rollout_id", how="left", maintain_order="left")
        .with_columns(reason=_row_reason(truncated))
        .with_columns(reason=pl.coalesce("reason", _group_reason(keep)))
        .with_columns(first=pl.col("row").min().over(_GROUP))
        .collect()
    )
    kept = judged.filter(pl.col("reason").is_null()).with_columns(
        group=(pl.col("first").rank("dense") - 1).cast(pl.Int32)  # numbered without gaps, in the order of sampling
    )
    return kept.drop("row", "judged", "outcome", "reason", "first"), _count(judged)


def _row_reason(truncated: str) -> "pl.Expr":
    import polars as pl

    # A verdict without a reward is an error of the verifier and no 0; NaN is what a broken one may write.
    unjudged = (pl.col("outcome") == "verifier_error") | pl.col("reward").is_null() | pl.col("reward").is_nan()
    return (
        pl.when(pl.col("judged").is_null())
        .then(pl.lit("missing_verdict"))
        .when(unjudged)
        .then(pl.lit("verifier_error"))
        .when(pl.col("response_tokens") == 0)
        .then(pl.lit("empty_response"))
        .when(pl.lit(truncated == "drop") & (pl.col("finish_reason") == "length"))
        .then(pl.lit("truncated"))
    )


def _group_reason(keep: str) -> "pl.Expr":
    """Judge each group by those of its rows that have no reason of their own."""
    import polars as pl

    valid = pl.col("reason").is_null()
    correct = valid & pl.col("correct")
    valids, corrects = valid.sum().over(_GROUP), correct.sum().over(_GROUP)
    needs_correct, needs_wrong = pl.lit(keep in ("any_correct", "mixed")), pl.lit(keep == "mixed")
    return (
        pl.when(valids < 2)
        .then(pl.lit("fewer_than_two_valid"))
        .when(needs_correct & (corrects == 0))
        .then(pl.lit("no_correct_answer"))
        .when(needs_wrong & (corrects == valids))
        .then(pl.lit("all_correct"))
    )


def _count(judged: "pl.DataFrame") -> SelectionCounts:
    import polars as pl

    kept = judged.filter(pl.col("reason").is_null())
    dropped = judged.filter(pl.col("reason").is_not_null())
    by_row = dict(dropped["reason"].value_counts().iter_rows())
    # A group is lost if no row is kept. Its reason is the one that took the last rows, the latest in the order of
    # reasons.
    lost = dropped.join(kept, on=_GROUP, how="anti")
    order = {reason: i for i, reason in enumerate((*ROW_REASONS, *GROUP_REASONS))}
    ranked = lost.with_columns(rank=pl.col("reason").replace_strict(order, return_dtype=pl.Int32, default=None))
    last = ranked.sort("rank").group_by(_GROUP, maintain_order=True).agg(pl.col("reason").last())
    by_group = dict(last["reason"].value_counts().iter_rows())
    counts = SelectionCounts(
        len(judged),
        judged.select(_GROUP).n_unique(),
        len(kept),
        kept.select(_GROUP).n_unique(),
        len(judged.filter((pl.col("outcome") != "verifier_error") & pl.col("correct"))),
        {reason: by_row[reason] for reason in order if reason in by_row},
        {reason: by_group[reason] for reason in order if reason in by_group},
    )
    assert counts.kept_rollouts + sum(counts.dropped.values()) == counts.rollouts, "every rollout is kept or counted"
    assert counts.kept_groups + sum(counts.dropped_groups.values()) == counts.groups, "every group is kept or counted"
    return counts

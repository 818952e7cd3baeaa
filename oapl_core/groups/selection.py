"""Which rollouts are trained on, decided from keys and verdicts alone; pure.

A row is dropped for the first reason that applies:

    missing_verdict        no verdict part has a row for it
    verifier_error         the verifier could not judge it (outcome ``verifier_error``, or no reward)
    empty_response         no token was sampled
    truncated              it was cut at the token limit                    (truncated = drop)
    fewer_than_two_valid   its group has fewer than two rows left, so no value can be estimated
    pass_rate_below        of its group's rows a smaller share is correct   (pass_rate)
    pass_rate_above        of its group's rows a larger share is correct    (pass_rate)
    no_correct_answer      no row of its group has a reward of 1 or more    (keep = any_correct, mixed)
    all_correct            every row of its group has                       (keep = mixed)
    same_reward            every row of its group has the same reward       (keep = spread)

``[reward] right_from`` takes the place of that 1. A filter of a person's own (``keep = module:function``) has its own
reasons. Of several filters each sees the rows that those before it left.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from oapl_core import plugins
from oapl_core.errors import DataError

if TYPE_CHECKING:
    import polars as pl

GROUP = ("problem_id", "policy_hash")
"""Columns that name a group."""
_ALONE = "fewer_than_two_valid"
Call = Callable[[str, "pl.DataFrame"], Sequence[str | None]]
"""Calls a person's own filter, by its name, for rows of keys and verdicts: a reason for each row that it drops."""


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


def _within(low: float, high: float) -> "dict[str, pl.Expr]":
    rate = corrects() / valids()
    return {"pass_rate_below": rate < low, "pass_rate_above": rate > high}


def is_valid() -> "pl.Expr":
    """Tell which rows have no reason yet."""
    import polars as pl

    return pl.col("reason").is_null()


def valids() -> "pl.Expr":
    """Count, for each row, the rows of its group that have no reason yet."""
    return is_valid().sum().over(GROUP)


def corrects() -> "pl.Expr":
    """Count, for each row, the correct ones among them."""
    import polars as pl

    return (is_valid() & pl.col("correct")).sum().over(GROUP)


def _nobody(name: str, _left: "pl.DataFrame") -> Sequence[str | None]:
    raise AssertionError(f"nobody was given who calls {name}")


def select(
    keys: "pl.DataFrame",
    verdicts: "pl.DataFrame",
    keep: Sequence[str],
    truncated: str,
    pass_rate: tuple[float, float] | None = None,
    call: Call = _nobody,
) -> "tuple[pl.DataFrame, SelectionCounts]":
    """Choose the rollouts that are trained on.

    Args:
        keys: one row per rollout: rollout_id, problem_id, policy_hash, sample, finish_reason, response_tokens, part
            (its file's number).
        verdicts: rollout_id, reward and correct (null: not judged), outcome.
        keep: names of filters, in order: ``any_correct``, ``mixed``, ``spread``, ``all`` or a person's own.
        truncated: ``keep`` or ``drop`` those that were cut.
        pass_rate: least and largest share of correct answers of a group.
        call: calls a filter that does not ship.

    Returns:
        The kept rows of ``keys`` with ``reward``, ``correct``, ``group`` (0, 1, ... by first appearance); the counts.

    Raises:
        DataError: a rollout id occurs twice, or a problem's rollouts lie in several parts.
    """
    import polars as pl

    _refuse_doubles(keys, verdicts)
    judged = keys.with_row_index("row").join(
        verdicts.with_columns(judged=pl.lit(True)), on="rollout_id", how="left", maintain_order="left"
    )
    # Rows get their own reasons first; a group is then judged by those of its rows that have none.
    rows = _Rows(judged)
    rows.drop(_of_rows(truncated))
    rows.drop({_ALONE: valids() < 2})
    rows.drop(_within(*pass_rate) if pass_rate else {})
    for name in keep:
        if name in plugins.BUILT_IN["filter"]:
            # expressions over whole columns: a round of 200,000 answers takes no second
            rows.drop(plugins.resolve("filter", name)())
        else:
            # a function is called group by group; what it leaves alone has no value any more
            rows.drop_by(name, call)
            rows.drop({_ALONE: valids() < 2})
    kept = rows.frame.with_columns(first=pl.col("row").min().over(GROUP)).filter(is_valid())
    kept = kept.with_columns(
        group=(pl.col("first").rank("dense") - 1).cast(pl.Int32)  # numbered without gaps, in the order of sampling
    )
    return kept.drop("row", "judged", "outcome", "reason", "rank", "first"), _count(rows.frame)


def _refuse_doubles(keys: "pl.DataFrame", verdicts: "pl.DataFrame") -> None:
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


class _Rows:
    """Rollouts with the reason why each is left out, and its rank: the number of reasons that were tried before."""

    def __init__(self, judged: "pl.DataFrame") -> None:
        import polars as pl

        self.frame = judged.with_columns(reason=pl.lit(None, pl.String), rank=pl.lit(None, pl.Int32))
        self._tried = 0

    def drop(self, reasons: "dict[str, pl.Expr]") -> None:
        """Give rows that have no reason yet the first of ``reasons`` whose expression is true for them."""
        import polars as pl

        for reason, applies in reasons.items():
            self._set(pl.when(applies).then(pl.lit(reason)))

    def drop_by(self, name: str, call: Call) -> None:
        """Give rows that have no reason yet what a filter of a person's own says of them."""
        import polars as pl

        left = self.frame.filter(is_valid())
        said = left.select("row", said=pl.Series(call(name, left), dtype=pl.String))
        self.frame = self.frame.join(said, on="row", how="left", maintain_order="left")
        self._set(pl.col("said"))
        self.frame = self.frame.drop("said")

    def _set(self, reason: "pl.Expr") -> None:
        import polars as pl

        # the first reason that applies stays: a row has one, so that counts add up
        is_new = is_valid() & reason.is_not_null()
        self.frame = self.frame.with_columns(
            reason=pl.coalesce("reason", reason), rank=pl.when(is_new).then(self._tried).otherwise("rank")
        )
        self._tried += 1


def _of_rows(truncated: str) -> "dict[str, pl.Expr]":
    import polars as pl

    # A verdict without a reward is an error of the verifier and no 0; NaN is what a broken one may write.
    unjudged = (pl.col("outcome") == "verifier_error") | pl.col("reward").is_null() | pl.col("reward").is_nan()
    reasons = {
        "missing_verdict": pl.col("judged").is_null(),
        "verifier_error": unjudged,
        "empty_response": pl.col("response_tokens") == 0,
    }
    return reasons | ({"truncated": pl.col("finish_reason") == "length"} if truncated == "drop" else {})


def _count(judged: "pl.DataFrame") -> SelectionCounts:
    import polars as pl

    kept, dropped = judged.filter(is_valid()), judged.filter(~is_valid())
    by_row = dropped.group_by("reason").agg(pl.len(), pl.col("rank").min()).sort("rank", "reason")
    # A group is lost if no row is kept. Its reason is the one that took the last rows.
    lost = dropped.join(kept, on=GROUP, how="anti").sort("rank", "row")
    last = lost.group_by(GROUP, maintain_order=True).agg(pl.col("reason").last())
    by_group = dict(last["reason"].value_counts().iter_rows())
    counts = SelectionCounts(
        len(judged),
        judged.select(GROUP).n_unique(),
        len(kept),
        kept.select(GROUP).n_unique(),
        len(judged.filter((pl.col("outcome") != "verifier_error") & pl.col("correct"))),
        dict(by_row.select("reason", "len").iter_rows()),
        {reason: by_group[reason] for reason in by_row["reason"] if reason in by_group},
    )
    assert counts.kept_rollouts + sum(counts.dropped.values()) == counts.rollouts, "every rollout is kept or counted"
    assert counts.kept_groups + sum(counts.dropped_groups.values()) == counts.groups, "every group is kept or counted"
    return counts

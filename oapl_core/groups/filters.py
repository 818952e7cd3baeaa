"""Filters that ship, by the names that ``keep`` of a round has for them; pure.

Each returns reasons with the rows of a Polars frame that they apply to. The frame has rewards, and the reasons so far.
"""

from typing import TYPE_CHECKING

from oapl_core.groups.selection import GROUP, corrects, is_valid, valids

if TYPE_CHECKING:
    import polars as pl


def any_correct() -> "dict[str, pl.Expr]":
    """Drop groups without a correct answer."""
    return {"no_correct_answer": corrects() == 0}


def mixed() -> "dict[str, pl.Expr]":
    """Drop groups without a correct answer, or without a wrong one."""
    return any_correct() | {"all_correct": corrects() == valids()}


def spread() -> "dict[str, pl.Expr]":
    """Drop groups whose rewards are all the same, whatever is correct: most objectives give them no advantage."""
    import polars as pl

    reward = pl.when(is_valid()).then(pl.col("reward"))
    return {"same_reward": reward.max().over(GROUP) == reward.min().over(GROUP)}


def every() -> "dict[str, pl.Expr]":
    """Drop no group that has two rows."""
    return {}

"""Counts of the turns of a round's rollouts, and of what their tools did.

Reads of the parts only the columns that are counted: tools' results, which may be longer than all tokens, stay on the
disk. Where an environment failed, the row has that as its last call. The model did not make it, so it is not counted.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from oapl_core import tables
from oapl_core.tables import LOSS_MASK
from oapl_core.turns import FAILED, has_turns

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa

_COUNTED = (
    LOSS_MASK,
    "turn_starts",
    "finish_reason",
    *(f"tool_calls.list.element.{name}" for name in ("is_error", "seconds")),
)


@dataclass(frozen=True)
class TurnCounts:
    """Sums over a round's rollouts."""

    rollouts: int = 0
    turns: int = 0
    calls: int = 0
    failed: int = 0
    """Calls whose result is an error."""
    seconds: float = 0.0
    """Wall time of all calls."""
    tokens: int = 0
    """Tokens of responses: the model's and those of the environment."""
    sampled: int = 0
    """Tokens of the model alone."""


def turn_counts(parts: Sequence[Path]) -> TurnCounts | None:
    """Count turns over all rows of ``parts``; None if none has turns.

    Raises:
        DataError: a part cannot be read.
    """
    import polars as pl

    sums, read = _sums(), [part for part in parts if has_turns(part)]
    frames = [pl.DataFrame(group).select(**sums) for part in read for group in _groups(part)]
    return TurnCounts(**pl.concat(frames).sum().row(0, named=True)) if frames else None


def _groups(part: Path) -> "Iterator[pa.Table]":
    with tables.open_table(part, tables.ROLLOUTS) as file:
        for number in range(file.num_row_groups):
            yield file.read_row_group(number, columns=list(_COUNTED))


def _sums() -> "dict[str, pl.Expr]":
    import polars as pl

    call = _calls().list.explode(empty_as_null=False, keep_nulls=False).struct
    return {
        "rollouts": pl.len().cast(pl.Int64),
        # a row of one turn says nothing of turns
        "turns": pl.col("turn_starts").list.len().fill_null(1).cast(pl.Int64).sum(),
        "calls": _calls().list.len().cast(pl.Int64).sum(),
        "failed": call.field("is_error").cast(pl.Int64).sum(),
        "seconds": call.field("seconds").sum(),
        "tokens": pl.col(LOSS_MASK).list.len().cast(pl.Int64).sum(),
        "sampled": pl.col(LOSS_MASK).list.sum().cast(pl.Int64).sum(),
    }


def _calls() -> "pl.Expr":
    """Return the calls of the model."""
    import polars as pl

    calls, failed = pl.col("tool_calls"), (pl.col("finish_reason") == FAILED).fill_null(value=False)
    return calls.list.head((calls.list.len().cast(pl.Int64) - failed.cast(pl.Int64)).clip(0))


def counts_of_rows() -> "dict[str, pl.Expr]":
    """Count the turns, the calls and the failed calls of each row of ROLLOUTS."""
    import polars as pl

    calls = _calls()
    return {
        "turns": pl.col("turn_starts").list.len().cast(pl.Int64).fill_null(1),
        "calls": calls.list.len().cast(pl.Int64),
        "failed_calls": calls.list.eval(pl.element().struct.field("is_error")).list.sum().cast(pl.Int64),
    }

"""Facts of every row of a groups file that must be known before any is trained on, and the rows that cannot be.

Reads a file of tables.GROUPS, row group by row group; keeps a few numbers of each row.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oapl_core import tables
from oapl_core.errors import DataError
from oapl_core.token_columns import COLUMNS, TokenColumn, column
from oapl_core.turns import with_sampled

if TYPE_CHECKING:
    import pyarrow as pa

TOKENS = ("prompt_ids", "response_ids", "behavior_logprobs")
"""Lists, one entry for each token."""


def facts(path: Path, vocabulary: float, columns: Mapping[str, TokenColumn]) -> "pa.Table":
    """Read a groups file with lengths in place of its lists, and flags of bad rows; one row group at a time.

    ``columns`` are the optional ones that the model can have, by name.
    """
    import pyarrow as pa

    with tables.open_table(path, tables.GROUPS) as file:
        empty = _without_tokens(file.schema_arrow.empty_table(), vocabulary, columns)
        read = (file.read_row_group(number) for number in range(file.num_row_groups))
        return pa.concat_tables([empty, *(_without_tokens(group, vocabulary, columns) for group in read)])


def _without_tokens(table: "pa.Table", vocabulary: float, columns: Mapping[str, TokenColumn]) -> "pa.Table":
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    foreign, infinite = np.zeros(table.num_rows, dtype=bool), np.zeros(table.num_rows, dtype=bool)
    table = with_sampled(table)
    for name in TOKENS:
        lists = table[name].combine_chunks()
        values, row_of = lists.flatten().to_numpy(zero_copy_only=False), pc.list_parent_indices(lists).to_numpy()
        if name == "behavior_logprobs":
            infinite[row_of[~np.isfinite(values)]] = True
        else:
            foreign[row_of[(values < 0) | (values >= vocabulary)]] = True
        # lengths take the lists' place: they are all that must be known of every row at once
        lengths = pc.list_value_length(lists).fill_null(0)
        table = table.set_column(table.column_names.index(name), name, lengths)
    for name in COLUMNS:
        flag = _fitting(table, name, columns.get(name))
        table = table.set_column(table.column_names.index(name), name, flag)
    return table.append_column("foreign", pa.array(foreign)).append_column("infinite", pa.array(infinite))


def _fitting(table: "pa.Table", name: str, column: TokenColumn | None) -> "pa.Array":
    """Check that each row's numbers are those of its tokens and of this model; null where it has none."""
    import pyarrow as pa

    numbers = table[name]
    if numbers.null_count == len(numbers):
        return pa.nulls(len(numbers), pa.bool_())
    prompts, responses = (table[name].to_pylist() for name in ("prompt_ids", "response_ids"))
    rows = zip(numbers, prompts, responses, strict=True)
    fit = [column is not None and column.fits(one, p + r - 1) if one.is_valid else None for one, p, r in rows]
    return pa.array(fit, pa.bool_())


def check_rows(table: "pa.Table", path: Path, longest: float, vocabulary: float, recorded: bool) -> None:
    """Refuse by name what cannot be trained on; ``table`` is what ``facts`` returns."""
    import numpy as np

    prompt, response, behavior = (table[name].to_numpy() for name in TOKENS)

    def refuse(bad: Any, what: str) -> None:
        if bad.any():
            row = int(bad.argmax())
            rows = f"rollout {table['rollout_id'][row]} {what} ({int(bad.sum())} such rows)"
            raise DataError(f"{path}: {rows}; sample the round again")

    # an engine's log-prob for each token, or, where they are rescored anyway, none at all; a part is damage
    unknown = np.zeros(len(behavior), dtype=bool) if recorded else behavior == 0
    refuse((response != behavior) & ~unknown, "has not one log-prob for each response token")
    refuse((response == 0) | (prompt == 0), "has an empty prompt or response")
    sampled = table["sampled"].to_numpy()
    refuse(sampled < 0, "has a loss_mask that does not fit its tokens, or a log-prob where that is false")
    refuse(sampled == 0, "has no token that the model sampled")
    refuse(prompt + response > longest, f"is longer than the model's {longest:.0f} positions")
    refuse(table["infinite"].to_numpy(), "has a log-prob that is not finite")
    refuse(~np.isfinite(table["reward"].to_numpy()), "has a reward that is not finite")
    for name in COLUMNS:
        numbers = table[name]
        if numbers.null_count < len(numbers):  # every row has some, or none
            refuse(~numbers.fill_null(False).to_numpy(), f"has not {column(name).values}")
    refuse(table["foreign"].to_numpy(), f"has a token outside the {vocabulary} that the model knows")

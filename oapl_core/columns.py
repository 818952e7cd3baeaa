"""Types of columns by the names that ``tables.py`` calls them, and the columns of rollouts of several turns."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

LOSS_MASK = "loss_mask"
"""Column of ROLLOUTS and GROUPS, true at tokens that the model sampled."""
TURNS = (
    (LOSS_MASK, "mask"),
    ("turn_starts", "ids"),
    ("prompt_hashes", "int64s"),
    ("tool_calls", "tool_calls"),
    ("turn_rewards", "float64s"),
    ("environment", "str"),
)
"""Columns of ROLLOUTS where the model may speak more than once (turns.py); null in a row of one turn."""


def arrow_types() -> "dict[str, pa.DataType]":
    """Return Arrow's type of each kind of column."""
    import pyarrow as pa

    # offsets of 32 bits would end a column's piece at 2 GiB, which texts reach
    call: Any = [("turn", pa.int32()), ("name", pa.string()), ("arguments", pa.large_string())]
    call += [("result", pa.large_string()), ("is_error", pa.bool_()), ("seconds", pa.float64())]
    return {
        "str": pa.string(),
        "text": pa.large_string(),
        "int32": pa.int32(),
        "int64": pa.int64(),
        "float32": pa.float32(),
        "ids": pa.list_(pa.int32()),
        "logprobs": pa.list_(pa.float32()),
        "time": pa.timestamp("us", tz="UTC"),
        "bytes": pa.large_binary(),
        "tests": pa.list_(pa.struct([("input", pa.large_string()), ("output", pa.large_string())])),
        "bool": pa.bool_(),
        "mask": pa.list_(pa.bool_()),
        "int64s": pa.list_(pa.int64()),
        "float64s": pa.list_(pa.float64()),
        "tool_calls": pa.list_(pa.struct(call)),
    }

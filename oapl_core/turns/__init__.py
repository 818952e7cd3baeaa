"""Turns: how a rollout in which the model speaks several times is stored, and whether a stored one is sound. Pure.

``response_ids`` is everything behind the first prompt in the order in which the model saw it. It has the model's
sampled tokens, and between them an environment's text (a tool's result with the chat template's markers), encoded once.
So the prompt of a turn is the first prompt and all of ``response_ids`` before the turn; nothing is decoded and encoded
again. ``loss_mask`` tells the two apart. A rollout of one turn is the special case: its columns here are null.

All that other packages ask of these columns is a function here; ``counts.py`` adds them up, ``shown.py`` words them.
"""

import hashlib
import struct
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oapl_core import tables
from oapl_core.tables import LOSS_MASK, TURNS

if TYPE_CHECKING:
    import numpy as np
    import polars as pl
    import pyarrow as pa
    from numpy.typing import NDArray

FAILED = "error"
"""Finish reason of a trajectory whose environment failed; the last of its calls says why."""
OF_TOKENS = ("response_ids", LOSS_MASK)
"""Columns of ROLLOUTS that ``sampled_tokens`` reads."""


def columns() -> "pa.Schema":
    """Return the Arrow schema of the columns of ROLLOUTS that tell of turns."""
    return tables.schema_of(TURNS)


def record(mask: Sequence[bool], starts: Sequence[int], **more: Any) -> dict[str, Any]:
    """Make the columns of a row from its mask and the beginnings of its turns; ``more`` are others of the columns."""
    return {LOSS_MASK: mask, "turn_starts": starts, **more}


def recorded(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return all columns that tell of the turns of a row; null for those that it has not."""
    return {name: row.get(name) for name, _ in TURNS}


def is_trajectory(row: Mapping[str, Any]) -> bool:
    """Tell whether a row says where its turns begin."""
    return row.get("turn_starts") is not None


def has_turns(part: Path) -> bool:
    """Look whether a row of a part of ROLLOUTS may have several turns.

    Raises:
        DataError: the file is missing or torn.
    """
    starts = tables.read_table(part, tables.ROLLOUTS, ["turn_starts"])["turn_starts"]
    return bool(starts.null_count < len(starts))


def calls_and_rewards(part: Path) -> list[dict[str, Any]] | None:
    """Read ``tool_calls`` and ``turn_rewards`` of each row of a part of ROLLOUTS; None where an answer is one turn."""
    if not has_turns(part):
        return None
    read: list[dict[str, Any]] = tables.read_table(part, tables.ROLLOUTS, ["tool_calls", "turn_rewards"]).to_pylist()
    return read


def sampled_tokens() -> "pl.Expr":
    """Count the tokens of each row of ROLLOUTS that the model sampled, int64; reads ``response_ids``, ``loss_mask``."""
    import polars as pl

    whole = pl.col("response_ids").list.len().cast(pl.Int64)
    return pl.col(LOSS_MASK).list.sum().cast(pl.Int64).fill_null(whole)


def sampled_lengths(part: Path) -> "pl.Series":
    """Count the tokens that the model sampled for each row of a part of ROLLOUTS; ids become no Python numbers."""
    import polars as pl

    read = pl.DataFrame(tables.read_table(part, tables.ROLLOUTS, OF_TOKENS))
    return read.select(sampled_tokens()).to_series()


def is_masked(columns: Collection[str]) -> bool:
    """Tell whether rows with these columns may say which of their tokens are trained."""
    return LOSS_MASK in columns


def trained(row: "pa.Table") -> "NDArray[np.bool_] | None":
    """Return which tokens of the response of a table's single row are trained: those of the model; None: all are."""
    column = row[LOSS_MASK]
    if column.null_count:
        return None
    mask: NDArray[np.bool_] = column.chunk(0).flatten().to_numpy(zero_copy_only=False)
    return mask


def with_sampled(table: "pa.Table") -> "pa.Table":
    """Add to a table of GROUPS the number of each response's tokens that the model sampled, below 0 where its mask is
    unfit. A flag that the row has a mask takes the mask's place."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    responses, logprobs = (table[name].combine_chunks() for name in ("response_ids", "behavior_logprobs"))
    tokens = pc.list_value_length(responses).to_numpy(zero_copy_only=False).astype(np.int32)
    has_mask = pc.is_valid(table[LOSS_MASK])
    for row in pc.indices_nonzero(has_mask).to_pylist():
        sampled = np.asarray(table[LOSS_MASK][row].values)
        recorded = np.asarray(logprobs[row].values) if logprobs[row].is_valid else np.zeros(len(sampled))
        # a log-prob of what nobody sampled would be taken for a ratio
        fits = len(sampled) == tokens[row] == len(recorded) and not recorded[~sampled].any()
        tokens[row] = sampled.sum() if fits else -1
    table = table.set_column(table.column_names.index(LOSS_MASK), LOSS_MASK, has_mask)
    return table.append_column("sampled", pa.array(tokens))


def turn_of_each(row: Mapping[str, Any]) -> list[int | None]:
    """Return for each token of a response the number of the turn in which the model said it; None: it did not."""
    ids, starts = row["response_ids"], row.get("turn_starts") or [0]
    mask = row.get(LOSS_MASK) or [True] * len(ids)
    return [bisect_right(starts, place) - 1 if own else None for place, own in enumerate(mask)]


def spans(row: Mapping[str, Any]) -> Iterator[tuple[list[int], list[int]]]:
    """Yield for each turn of a row of ROLLOUTS the ids that the model sampled, and those of the environment behind
    them.
    """
    ids, starts, mask = row["response_ids"], row.get("turn_starts") or [0], row.get(LOSS_MASK)
    for start, end in pairwise([*starts, len(ids)]):
        sampled = end - start if mask is None else sum(mask[start:end])
        yield ids[start : start + sampled], ids[start + sampled : end]


def prompt_hash(ids: Sequence[int]) -> int:
    """Hash the token ids that an engine says it was given: the first 64 bits of a SHA-256, as a signed number."""
    return _hashes(ids, [len(ids)])[0]


def _hashes(ids: Sequence[int], ends: Sequence[int]) -> list[int]:
    """Compute the ``prompt_hash`` of the first so many ``ids``, for each of the rising ``ends``."""
    hashes, digest = list[int](), hashlib.sha256()
    for start, end in zip([0, *ends], ends, strict=False):
        # 32 bits for each id, the lower byte first, so that every machine gets the same
        digest.update(struct.pack(f"<{end - start}i", *ids[start:end]))
        hashes.append(int.from_bytes(digest.digest()[:8], "little", signed=True))
    return hashes


def fault(row: Mapping[str, Any], prompt_ids: Sequence[int]) -> str | None:
    """Describe the fault of a row of ROLLOUTS that has turns, in a few words; None if the row is sound.

    In a sound row mask and log-probs fit the tokens, and each turn begins where tokens of the model begin. The prompt
    of each turn is exactly what the engine says it was given (where it says that).
    """
    ids, starts, logprobs = row["response_ids"], row["turn_starts"] or [0], row["logprobs"]
    if not ids:  # nothing was sampled: the groups stage drops it by that name
        return None
    mask = [True] * len(ids) if row[LOSS_MASK] is None else row[LOSS_MASK]
    if len(mask) != len(ids):
        return f"has {len(mask)} entries of loss_mask for {len(ids)} tokens"
    if logprobs is not None and any(p != 0.0 for p, sampled in zip(logprobs, mask, strict=True) if not sampled):
        return "has a log-prob at a token of the environment"
    if starts[0] != 0 or any(a >= b for a, b in zip(starts, [*starts[1:], len(ids)], strict=True)):
        return f"has turns that do not follow each other ({starts} of {len(ids)} tokens)"
    for turn, (start, end) in enumerate(zip(starts, [*starts[1:], len(ids)], strict=True)):
        # tokens of the model first, then those of the environment that answer it: nothing of the model behind them
        part = mask[start:end]
        if not part[0] or part != sorted(part, reverse=True):
            return f"has tokens of the model outside of its turns (turn {turn})"
    before = _hashes([*prompt_ids, *ids], [len(prompt_ids) + start for start in starts])
    if row["prompt_hashes"] is not None and row["prompt_hashes"] != before:
        turns = zip(before, [*row["prompt_hashes"], *[None] * len(before)], strict=False)
        turn = next((turn for turn, (mine, theirs) in enumerate(turns) if mine != theirs), len(before))
        return f"was given another prompt in turn {turn} than the tokens before it"
    if any(not 0 <= call["turn"] < len(starts) for call in row["tool_calls"] or ()):
        return "has a tool call of a turn that it does not have"
    if row["turn_rewards"] is not None and len(row["turn_rewards"]) != len(starts):
        return f"has {len(row['turn_rewards'])} rewards for {len(starts)} turns"
    return None

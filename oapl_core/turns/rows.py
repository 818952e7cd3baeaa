"""Rows of ROLLOUTS in which the model speaks several times: how one is written and checked. Pure.

The package's docstring says what the columns mean.
"""

import hashlib
import struct
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from oapl_core import tables
from oapl_core.tables import LOSS_MASK, TURNS

if TYPE_CHECKING:
    import pyarrow as pa


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


def has_beginning(row: Mapping[str, Any]) -> bool:
    """Tell whether a row's answer begins with tokens that the model was given."""
    return row.get(LOSS_MASK) is not None and not is_trajectory(row)


def turn_of_each(row: Mapping[str, Any]) -> list[int | None]:
    """Return for each token of a response the number of the turn in which the model said it; None: it did not."""
    ids, starts = row["response_ids"], row.get("turn_starts") or [0]
    mask = row.get(LOSS_MASK) or [True] * len(ids)
    return [bisect_right(starts, place) - 1 if own else None for place, own in enumerate(mask)]


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

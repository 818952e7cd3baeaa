"""Lines about what works and is hardly meant; plan, stages and report say the same. Pure."""

from collections.abc import Mapping
from typing import Any

LEFT_OUT = "left_out"
"""Key in the ledger's details of the problems: problems left out since one that is measured has their statement."""


def left_out_statements(details: Mapping[str, Any]) -> str | None:
    """Return the line about problems that were left out since a measured one has their statement; None without any."""
    counts = details.get(LEFT_OUT, {})
    found = [f"{counts[split]:,} of {split}" for split in ("train", "validation", "heldout") if counts.get(split)]
    if not found:
        return None
    problem, other = counts["first"]
    return (
        f"left out, as a problem that is measured has the same statement: {', '.join(found)} (first: {problem!r}, that "
        f"of {other!r})"
    )


def batch_too_large(what: str, sequences: int, batch_size: int) -> str | None:
    """Return the line about fewer sequences than a step would take; None if there are enough."""
    if not 0 < sequences < batch_size:
        return None
    return (
        f"batch_size = {batch_size} is more than the {sequences:,} sequences of {what}: no step has as many, an epoch "
        "takes hardly any; lower it"
    )

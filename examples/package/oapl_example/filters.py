"""A filter that leaves repeated answers out: ``[[rounds]] keep = ["any_correct", "distinct"]``."""

from collections.abc import Mapping, Sequence
from typing import Any


def distinct(problem: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> list[str | None]:
    """Keep the first of a group's answers that say the same, letter by letter.

    Args:
        problem: the problem's columns.
        rows: the group's rollouts with their verdicts, samples in order.

    Returns:
        For each row None, or the reason why it is left out.
    """
    texts = [row["text"].strip() for row in rows]
    return ["repeats another" if text in texts[:number] else None for number, text in enumerate(texts)]

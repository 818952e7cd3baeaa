"""A reward for short right answers: ``[reward] function = "brief"``."""

from collections.abc import Mapping
from typing import Any


def brief(problem: Mapping[str, Any], response: str, verdict: Mapping[str, Any]) -> float:
    """Give a right answer 1, less up to a half for its length; a wrong one 0.

    Args:
        problem: the problem's columns.
        response: the answer's text.
        verdict: the verifier's judgement, with ``reward`` (1 or 0) and ``response_tokens``.

    Returns:
        The reward.
    """
    length = min(1.0, float(verdict["response_tokens"]) / 1000)
    return float(verdict["reward"]) * (1.0 - 0.5 * length)

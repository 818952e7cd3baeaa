"""A graded reward for whole runs: a share of the tests, less for long answers, never 0 or 1 alone."""

from collections.abc import Mapping
from typing import Any

RIGHT_FROM = 0.6


def score(_problem: Mapping[str, Any], response: str, verdict: Mapping[str, Any]) -> tuple[float, dict[str, float]]:
    """0.7 to 1 for a correct answer, up to 0.4 for what passes some tests, and the response's characters."""
    share = verdict["tests_passed"] / max(1, verdict["tests_run"])
    length = len(response)
    return (1.0 if verdict["reward"] else 0.4 * share) - 0.3 * min(1.0, length / 400), {"characters": length}

"""Says once when correct answers become less likely than they were: what came before each fall that was looked at.

docs/benchmarks/baselines.md has the criterion, the arms, and what did not foretell (the effective sample size). Reads
and writes no files.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

WINDOW = 10
"""Optimiser steps whose mean is looked at."""


class EarlyWarning:
    """Looks at each step; the mean of the last WINDOW steps decides."""

    def __init__(self, before: Iterable[Mapping[str, Any]] = ()) -> None:
        """``before``: steps that an earlier process made; it said what there was to say."""
        self._recent = deque[float](maxlen=WINDOW)
        self._is_said = False
        for step in before:
            self(step)

    def __call__(self, step: Mapping[str, Any]) -> str | None:
        """The line to say after ``step``, the first time that there is one."""
        if step.get("log_ratio_right") is None:
            return None
        self._recent.append(float(step["log_ratio_right"]))
        mean = sum(self._recent) / WINDOW
        if self._is_said or len(self._recent) < WINDOW or mean >= 0:
            return None
        self._is_said = True
        return (
            f"warning: step {step['step']}: correct answers are less likely than when they were sampled "
            f"(log_ratio_right {mean:.2f} over {WINDOW} steps): accuracy may fall; lower training.learning_rate, or "
            "train for fewer steps on these rollouts"
        )

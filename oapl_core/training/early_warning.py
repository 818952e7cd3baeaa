"""Says once when correct answers become less likely than they were: in the arms of bench/claims that came before a fall.

What was tried, and what did not foretell: docs/benchmarks/baselines.md. Reads and writes no files.
"""

from collections import deque
from collections.abc import Mapping
from typing import Any

WINDOW = 10
"""Optimiser steps whose mean is looked at."""


class EarlyWarning:
    """Looks at each step; the mean of the last WINDOW steps decides."""

    def __init__(self) -> None:
        self._recent = deque[float](maxlen=WINDOW)
        self._is_said = False

    def __call__(self, step: Mapping[str, Any]) -> str | None:
        """The line to say after ``step``, the first time that it is time for one."""
        if step.get("log_ratio_right") is None:
            return None
        self._recent.append(float(step["log_ratio_right"]))
        mean = sum(self._recent) / WINDOW
        if self._is_said or len(self._recent) < WINDOW or mean >= 0:
            return None
        self._is_said = True
        return (
            f"warning: step {step['step']}: correct answers are less likely than when they were sampled ({mean:.2f} nats "
            f"an answer over {WINDOW} steps, effective sample size {step['effective_sample_size']:.2f}): a fall may follow; "
            "lower training.learning_rate, train for fewer steps on these rollouts, or hold the policy closer to them"
        )

"""When a run stops by itself: the `stop` group of an experiment's settings.

A run that stopped is finished for Prefect and says which rule ended it. With a higher limit, or without the rule, the
same command continues it. The rules are in `oapl_extras/stop/rules.py`.
"""

from typing import Literal

from pydantic import PositiveFloat, PositiveInt

from oapl_core.settings_group import Settings


class StopConfig(Settings):
    """Limits at which a run stops; unset: no limit. They may change at any time."""

    without_gain: PositiveInt | None = None
    """Evaluations in a row, each no better than the best before them. Needs `evaluation.every_rounds`."""
    gpu_hours: PositiveFloat | None = None
    """Hours of all stage processes, each times the GPUs that it could use. Hours."""
    wall_hours: PositiveFloat | None = None
    """Hours during which a stage worked; pauses between two nights do not count. Hours."""
    judge_calls: PositiveInt | None = None
    """Requests to the language model of `[reward.judge]`."""
    judge_tokens: PositiveInt | None = None
    """Tokens of prompts and replies of `[reward.judge]`."""
    disk_gb: PositiveFloat | None = None
    """Bytes of the run folder. GB (10^9 bytes)."""
    alarms: tuple[Literal["suspicious-jump", "verifier-errors", "truncated", "mismatch"], ...] = ()
    """Alarms that stop the run, by the names of their rules."""

    @property
    def is_on(self) -> bool:
        """Whether any rule is set."""
        return any(getattr(self, name) for name in type(self).model_fields)

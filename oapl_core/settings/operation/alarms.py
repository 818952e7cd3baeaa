"""When a run tells somebody: the `alarms` group of an experiment's settings.

An alarm stops nothing, unless `stop.alarms` names it. It is a line at the head of the report, a warning in the log
and, under Prefect, an event.
"""

from typing import Annotated

from pydantic import Field

from oapl_core.settings_group import Fraction, Settings


class AlarmsConfig(Settings):
    """Thresholds of the rules in `oapl_core/reports/alarms.py`; they may change while a run is unfinished."""

    correct_jump: Fraction = 0.5
    """Change of the share of correct answers from one round to the next, of all judged answers. The demo's real rise is
    0.45."""
    length_ratio: Annotated[float, Field(gt=1.0)] = 2.0
    """Ratio of mean response tokens between two rounds, up or down."""
    verifier_errors: Fraction = 0.005
    """Share of a round's answers that could not be judged; `verifier.max_error_share` stops the run."""
    truncated: Fraction = 0.5
    """Share of a round's answers that were cut at `sampling.max_tokens`."""
    mismatch: Fraction = 0.5
    """Mean difference between the log-probs of engine and trainer, as a share of what stops the run
    (`training.max_mismatch`)."""

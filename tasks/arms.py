"""Steps of a comparison that are no run's own: one engine measures all trained arms, and one report is written."""

from pathlib import Path

from oapl_core import launch
from oapl_core.comparing.folder import MEASURING, REPORTING, Comparison
from oapl_core.planning.plan import Step
from tasks.stage import progress, run_step

_LIKE = {MEASURING.verb: "evaluation.evaluate", REPORTING.verb: "reports.write"}
"""A run's step of the same kind."""


def run_on_all(root: Path, step: Step) -> None:
    """``step`` of the comparison in ``root``, as a task.

    Raises:
        OaplError: it failed.
    """
    run_step(root, step, _execute, _LIKE[step.verb])


def _execute(root: Path, step: Step) -> None:
    progress.info("%s: starting", step.title)
    comparison = Comparison.open(root)
    limit_s = comparison.parent.config.time_limits_h.seconds(_LIKE[step.verb])
    launch.run_stage(comparison, step.verb, step.arguments, lambda line: progress.info("%s", line), limit_s)

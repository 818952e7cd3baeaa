"""Steps of folders that are no runs: the evaluation of any checkpoints, and of a comparison's arms, with its report."""

from collections.abc import Callable
from pathlib import Path

from oapl_core import launch
from oapl_core.comparing.folder import MEASURING, REPORTING, Comparison
from oapl_core.evaluation.folder import EvaluationFolder
from oapl_core.planning.plan import Step
from tasks.stage import progress, run_step

EVALUATING = Step("measuring the models", "evaluation.evaluate", None, ("card.json",))
_LIKE = {MEASURING.verb: "evaluation.evaluate", REPORTING.verb: "reports.write"}
"""A run's step of the same kind: its retries, tags and time limit are those of the comparison's."""


def run_in(root: Path, step: Step, opens: Callable[[Path], EvaluationFolder | Comparison]) -> None:
    """``step`` of the folder ``root``, as a task.

    Raises:
        OaplError: it failed.
    """

    def execute(root: Path, step: Step) -> None:
        progress.info("%s: starting", step.title)
        folder, limit_s = opens(root), None
        if isinstance(folder, Comparison):  # an evaluation folder has no settings of time limits
            limit_s = folder.parent.config.time_limits_h.seconds(_LIKE[step.verb])
        launch.run_stage(folder, step.verb, step.arguments, lambda line: progress.info("%s", line), limit_s)

    run_step(root, step, execute, _LIKE.get(step.verb, step.verb))

"""The step of an evaluation of checkpoints, which belongs to no run."""

from pathlib import Path

from oapl_core import launch
from oapl_core.evaluation.measurement import Measurement
from oapl_core.planning.plan import Step
from tasks.stage import progress, run_step

MEASURING = Step("measuring the models", "evaluation.measure", None, ("card.json",))
_LIKE = "evaluation.evaluate"
"""A run's step of the same kind."""


def measure_models(root: Path) -> None:
    """Measure what is not yet of the first architecture that is not finished, as a task.

    Raises:
        OaplError: it failed.
    """
    run_step(root, MEASURING, _execute, _LIKE)


def _execute(root: Path, step: Step) -> None:
    progress.info("%s: starting", step.title)
    launch.run_stage(Measurement.open(root), step.verb, step.arguments, lambda line: progress.info("%s", line))

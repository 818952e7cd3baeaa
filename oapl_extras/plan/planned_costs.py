"""Costs that `oapl plan` estimates, for a report to show beside what a run has cost."""

from contextlib import chdir

from oapl_core.errors import OaplError
from oapl_core.run_folder.run import Run
from oapl_extras.plan.estimate import estimate
from oapl_extras.plan.plan_command import model_size, problem_counts


def planned_costs(run: Run) -> dict[str, float] | None:
    """Estimate GPU-hours by stage package (``rollouts``, ``training``, ``evaluation``), and GB of the run's files.

    None: the model or the problems are not there any more, and `[estimate]` does not say.
    """
    config = run.config
    try:
        with chdir(run.origin):  # where the relative paths of its settings start
            model, _origin = model_size(config)
            made = estimate(config, model, problem_counts(config))
    except OaplError:
        return None
    return {
        "rollouts": sum(one.sampling_h for one in made.rounds),
        "training": sum(one.training_h for one in made.rounds),
        "evaluation": made.evaluation.sampling_h,
        "GPU": made.hours,
        "GB": sum(made.disk.values()) / 1e9,
    }

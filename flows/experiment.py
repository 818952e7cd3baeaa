"""A whole experiment: base model, problems, N rounds, evaluation, report."""

from pathlib import Path

from prefect import flow

from flows.round import oapl_round, run_missing
from oapl_core.artifacts import Run
from oapl_core.mirroring import mirrored
from oapl_core.plan import conclusion, finished, preparation, round_steps
from tasks.stage import progress


@flow(name="oapl-experiment", validate_parameters=False)
def oapl_experiment(run_dir: Path) -> None:
    """Bring the run in ``run_dir`` (made by ``Run.create``) to its end; finished steps are not redone."""
    run = Run.open(run_dir)
    with mirrored(run, lambda line: progress.info("%s", line)):
        run_missing(run_dir, preparation(run.config))
        for number in range(len(run.config.rounds)):
            if not set(round_steps(number)) <= set(finished(Run.open(run_dir))):
                oapl_round(run_dir, number)
        run_missing(run_dir, conclusion(run.config))

"""A whole experiment: base model, problems, N rounds, evaluation, report."""

from flows.conclude import conclude
from flows.round import run_missing, run_round
from flows.start import flow_of_a_run, next_round, run_name
from oapl_core.planning.plan import preparation
from oapl_core.run_folder.run import Run


@flow_of_a_run("oapl-experiment", run_name)
def oapl_experiment(run: Run) -> str:
    """Bring a run to its end: every round, the evaluation and the report; or as far as a person wants it now."""
    run_missing(run, preparation(run.config))
    for number in range(len(run.config.rounds)):
        run_round(run, number, is_followed=True)
    is_left = run.until is not None and next_round(run) is not None
    return f"{run.root}: not every round is finished" if is_left else conclude(run)

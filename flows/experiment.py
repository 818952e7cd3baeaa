"""A whole experiment: base model, problems, N rounds, evaluation, report."""

from prefect import flow
from prefect.client.schemas.objects import State

from flows.conclude import conclude
from flows.round import run_missing, run_round
from flows.start import Start, play, run_name
from oapl_core.planning.plan import preparation
from oapl_core.run_folder.run import Run


@flow(name="oapl-experiment", flow_run_name=run_name)
def oapl_experiment(start: Start) -> State[None]:
    """Bring a run to its end: every round, the evaluation and the report."""
    return play(start, _everything)


def _everything(run: Run) -> str:
    run_missing(run, preparation(run.config))
    for number in range(len(run.config.rounds)):
        run_round(run, number)
    return conclude(run)

"""The end of a run: its checkpoints are evaluated on problems that training never saw, and the report is written."""

from prefect import flow
from prefect.client.schemas.objects import State

from flows.round import run_missing
from flows.start import Start, next_round, play, run_name
from oapl_core.errors import DataError
from oapl_core.planning.plan import conclusion
from oapl_core.run_folder.run import Run


@flow(name="oapl-conclude", flow_run_name=run_name)
def oapl_conclude(start: Start) -> State[None]:
    """Evaluate the checkpoints of a run whose rounds are finished, and write its report."""
    return play(start, conclude)


def conclude(run: Run) -> str:
    """Evaluate the run and write its report.

    Raises:
        DataError: a round is not finished.
    """
    # not done here: whoever starts the end of a run wants its numbers, not days of training
    waiting = next_round(run)
    if waiting is not None:
        raise DataError(f"{run.root}: round {waiting} is not finished; run oapl-round or oapl-experiment first")
    run_missing(run, conclusion(run.config))
    return f"{run.root}: evaluated; the report is {run.report / 'index.html'}"

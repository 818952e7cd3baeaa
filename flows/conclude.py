"""The end of a run: its checkpoints are evaluated on problems that training never saw, and the report is written."""

from flows.round import run_missing
from flows.start import flow_of_a_run, next_round, run_name
from oapl_core.errors import DataError
from oapl_core.planning.plan import conclusion
from oapl_core.run_folder.run import Run


def conclude(run: Run) -> str:
    """Evaluate the checkpoints of a run whose rounds are finished, and write its report.

    Raises:
        DataError: a round is not finished.
    """
    # not done here: whoever starts the end of a run wants its numbers, not days of training
    waiting = next_round(run)
    if waiting is not None:
        raise DataError(f"{run.root}: round {waiting} is not finished; run oapl-round or oapl-experiment first")
    run_missing(run, conclusion(run.config))
    return f"{run.root}: evaluated; the report is {run.report / 'index.html'}"


oapl_conclude = flow_of_a_run("oapl-conclude", run_name)(conclude)

"""Flow of what comes after a round's training: its optional steps, then a report that has their numbers.

Found by name by flows/round.py, where a round has such steps. Reads the ledger; the steps write what they make.
"""

from flows.round import run_missing
from oapl_core.errors import ConfigError, DataError, SandboxError, StageFailed
from oapl_core.planning.plan import Step, conclusion, finished, steps_after
from oapl_core.run_folder.run import Run
from tasks.stage import progress, run_step


def run_after(run: Run, after: tuple[Step, ...]) -> None:
    """Bring the steps ``after`` a round to their end, and show what they measured."""
    run_missing(run, after)
    # a kill may have come before the report, or the report failed: the next start writes it
    if set(after) <= set(finished(run)) and is_unshown(run, after):
        show_numbers(run)


def is_unshown(run: Run, after: tuple[Step, ...]) -> bool:
    """Tell whether the newest numbers of the run came from a step of ``after``, and no report ended well since."""
    report = conclusion(run.config)[-1].label
    measuring = {step.label for number in range(len(run.config.rounds)) for step in steps_after(run.config, number)}
    ended = [entry.stage for entry in run.ledger.stages() if not entry.exit_code]
    newest = next((label for label in reversed(ended) if label in {report, *measuring}), report)
    return newest in {step.label for step in after}


def show_numbers(run: Run) -> None:
    """Write the report of what there is; a run of weeks does not end because a page could not be written."""
    report = conclusion(run.config)[-1]
    try:
        run_step(run.root, report)
    except (ConfigError, DataError, SandboxError, StageFailed) as error:  # what ends a run on purpose still does
        progress.warning("%s: %s; the run continues", report.title, error)

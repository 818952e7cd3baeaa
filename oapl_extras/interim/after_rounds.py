"""Flow of what comes after a round's training: its optional steps, then a report that has their numbers.

Where there is room for both, the next round is sampled meanwhile. Found by name by flows/round.py, where a round has
such steps. Reads the ledger; the steps write what they make.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from flows.round import run_missing, verifying
from oapl_core.devices import visible_gpus
from oapl_core.errors import ConfigError, DataError, Interrupted, OaplError, SandboxError, StageFailed
from oapl_core.planning.plan import conclusion, finished, round_steps, steps_after, wanted, why_unfinished
from oapl_core.planning.stages import SAMPLING
from oapl_core.run_folder.following import observer
from oapl_core.run_folder.ledger import ArtifactEntry
from oapl_core.run_folder.run import Run
from oapl_extras.interim.stage import INTERIM, fits_beside
from tasks.stage import beside, progress, run_step, telling


def run_after(run: Run, number: int, is_followed: bool = False) -> None:
    """Bring the steps after round ``number`` to their end, and show what they measured.

    ``is_followed``: the next round comes after them; it is sampled meanwhile where there is room for both.
    """
    after = steps_after(run.config, number)
    with shown_at_an_end(run, number):
        if is_followed and has_room_beside(run, number):
            sample_meanwhile(run, number)
        run_missing(run, after)
    # a kill may have come before the report, or the report failed: the next start writes it
    if set(after) <= set(finished(run)) and is_unshown(run, number):
        show_numbers(run)


def sample_meanwhile(run: Run, number: int) -> None:
    """Sample the next round during the steps after round ``number``; what these leave is done as without it.

    Raises:
        OaplError: sampling failed, or a rule ended the run, which ends the other; a failure of the other is only said.
    """
    following, tell = number + 1, telling()
    sampling = round_steps(following, run.config.rounds[following])[0]
    with ExitStack() as stack:
        for step in steps_after(run.config, number):
            # before an engine starts: a rule that ended the run ends it again at once
            stack.enter_context(observer("stop", run, tell).around(step, tell))
            stack.enter_context(beside(run.root, step.during_sampling()))
        stack.enter_context(verifying(run, following))
        run_missing(run, (sampling,))


def has_room_beside(run: Run, number: int) -> bool:
    """Tell whether steps after round ``number`` are left that can share this machine with the next round's sampling."""
    config, following = run.config, number + 1
    left = [step for step in steps_after(config, number) if why_unfinished(run, step)]
    # with [pipeline] the next round is sampled already; steps of other people know no option of ours
    if not left or config.pipeline or following == len(config.rounds) or any(one.stage is not INTERIM for one in left):
        return False
    sampling = round_steps(following, config.rounds[following])[0]
    is_next = sampling.stage is SAMPLING and sampling in wanted(run) and why_unfinished(run, sampling) is not None
    return is_next and fits_beside(config, len(visible_gpus()))


@contextmanager
def shown_at_an_end(run: Run, number: int) -> Iterator[None]:
    """Write the report, too, where the run ends in the body: it has the numbers for which a rule may have ended it."""
    try:
        yield
    except OaplError as error:
        # who asks it to stop does not want to wait
        if is_unshown(run, number) and not isinstance(error, Interrupted):
            show_numbers(run)
        raise


def is_unshown(run: Run, number: int) -> bool:
    """Tell whether the newest answers or numbers before the end are of round ``number``, and no report is newer."""
    report, newest = run.name(run.report), None
    made = {n: sum((step.outputs for step in steps_after(run.config, n)), ()) for n in range(len(run.config.rounds))}
    for entry in run.ledger.entries():
        if isinstance(entry, ArtifactEntry):
            of = next((n for n, names in made.items() if entry.artifact.startswith(names)), newest)
            newest = None if entry.artifact == report else of
    return newest == number


def show_numbers(run: Run) -> None:
    """Write the report of what there is; a run of weeks does not end because a page could not be written."""
    report = conclusion(run.config)[-1]
    try:
        run_step(run.root, report)
    except (ConfigError, DataError, SandboxError, StageFailed) as error:  # what ends a run on purpose still does
        progress.warning("%s: %s; the run continues", report.title, error)

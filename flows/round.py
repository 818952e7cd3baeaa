"""One round: sample with the newest checkpoint and verify what is sampled meanwhile, verify the rest, filter, train.

After some rounds come optional steps, such as an evaluation, and a report that has their numbers. Reads the checkpoint
of the round before; writes ``round_NN/``.
"""

from contextlib import AbstractContextManager, nullcontext

from flows.start import flow_of_a_run, next_round, run_and_round
from oapl_core.errors import StageFailed
from oapl_core.planning.plan import Step, finished, preparation, round_steps, steps_after, wanted, why_unfinished
from oapl_core.planning.stages import SAMPLING, VERIFICATION
from oapl_core.plugins import resolve
from oapl_core.run_folder.run import Run
from tasks.stage import beside, run_step


@flow_of_a_run("oapl-round", run_and_round)
def oapl_round(run: Run) -> str:
    """Bring the first unfinished round to its end: one that was begun, else the next. Meant to be run every night."""
    run_missing(run, preparation(run.config))
    number = next_round(run)
    if number != 0:  # a kill may have come between the last step of a round and the report of it
        run_after(run, (len(run.config.rounds) if number is None else number) - 1)
    if number is None:
        return f"{run.root}: no round is left to do, all {len(run.config.rounds)} are finished"
    run_round(run, number)
    return f"{run.root}: round {number} is finished, the last is round {len(run.config.rounds) - 1}"


def run_round(run: Run, number: int, is_followed: bool = False) -> None:
    """Bring round ``number`` (counted from 0) to its end; one that is finished is not even looked into.

    ``is_followed``: what comes after it may be done while the next round, which follows, is sampled.
    """
    *others, training = round_steps(number, run.config.rounds[number])
    if not {*others, training} <= set(finished(run)):
        run_to_groups(run, number)
        if training in wanted(run) and training not in finished(run):
            with sampling_ahead(run, number):
                run_missing(run, (training,))
    run_after(run, number, is_followed)


def run_after(run: Run, number: int, is_followed: bool = False) -> None:
    """Run what is missing of the optional steps after round ``number``, and the report that they call for."""
    if steps_after(run.config, number):
        resolve("setting", "steps after a round")(run, number, is_followed)


def run_to_groups(run: Run, number: int) -> None:
    """Bring round ``number`` to where training would begin."""
    first, *others, _training = round_steps(number, run.config.rounds[number])
    if first.stage is SAMPLING and first not in finished(run):
        with verifying(run, number):
            run_missing(run, (first,))
    run_missing(run, (first, *others))


def sampling_ahead(run: Run, number: int) -> AbstractContextManager[None]:
    """With `pipeline`, sample the next round while this one trains; that round's own step does what is left of it."""
    following, config = number + 1, run.config
    sampling = round_steps(following)[0]
    # rows that are read are not sampled, and what follows them is sampled by what they trained
    is_ahead = config.pipeline and sampling in wanted(run) and config.sampling_round(following) != following
    return beside(run.root, sampling) if is_ahead else nullcontext()


def run_missing(run: Run, steps: tuple[Step, ...]) -> None:
    """Run those of ``steps`` that are wanted and not finished, in order.

    One that makes the same bytes again reopens no other.

    Raises:
        OaplError: a stage failed, or left something unfinished that it does not make (any more).
    """
    for step in steps:
        if step in wanted(run) and step not in finished(run):
            run_step(run.root, step)
            if why := why_unfinished(run, step):
                number = "" if step.round is None else f" --round {step.round}"
                raise StageFailed(
                    f"{run.root}: {step.title} ended well, but {why}; if that "
                    f"stays so, `oapl run {run.root} --redo {step.word}{number}` makes all of it again"
                )


def verifying(run: Run, number: int) -> AbstractContextManager[None]:
    """Verify what is sampled during sampling, if verdicts are wanted."""
    # who stops after sampling may have no sandbox here
    mine = next((step for step in wanted(run) if step.verb == VERIFICATION.verb and step.round == number), None)
    return beside(run.root, mine.during_sampling("--follow")) if mine else nullcontext()

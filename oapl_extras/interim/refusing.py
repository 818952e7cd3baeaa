"""Refusals of settings of evaluations during the run; found by name when an experiment file has any of them."""

from oapl_core.settings.evaluation import OF_ALL_ROUNDS
from oapl_core.settings.experiment import Experiment


def refuse(config: Experiment) -> None:
    """Refuse what does not go with the rounds of ``config``.

    Raises:
        ValueError: nothing would be measured before the end, or what a setting needs is not there.
    """
    settings, rounds = config.evaluation, len(config.rounds)
    of_rounds = {
        f"choose_on = '{OF_ALL_ROUNDS}'": settings.choose_on == OF_ALL_ROUNDS,
        "heldout_problems": settings.heldout_problems,
    }
    if not settings.every_rounds:
        if name := next((name for name, given in of_rounds.items() if given), None):
            raise ValueError(f"evaluation.{name} is of evaluations after rounds: give evaluation.every_rounds")
        return
    if not settings.before_the_end(rounds):
        most = rounds - 1
        raise ValueError(
            f"evaluation.every_rounds = {settings.every_rounds} is past the end: the run has {rounds} rounds, and the "
            "last is measured at the end of the run; "
            + (f"give at most {most}, or leave it out" if most else "leave it out")
        )
    if settings.every_rounds == "epoch":
        _refuse_removed_weights(config)


def _refuse_removed_weights(config: Experiment) -> None:
    keep, most = config.training.keep_checkpoints, max(one.epochs for one in config.rounds[:-1])
    if keep != "all" and most > (1 if keep == "last" else keep):
        raise ValueError(
            f"evaluation.every_rounds = 'epoch' measures every epoch of a round, but training.keep_checkpoints = "
            f"{keep!r} removes the weights of some before; give 'all', or a number of rounds"
        )

"""`oapl run --until`, and `until` of the flows, which find this by the option's name: how far a run is wanted now."""

from dataclasses import replace

from oapl_core.changing.redoing import find_step
from oapl_core.errors import ConfigError
from oapl_core.planning.plan import finished, steps
from oapl_core.run_folder.run import Run


def until(run: Run, stage: str | None, number: int | None = None) -> Run:
    """Return ``run`` with ``stage`` as the last that is wanted now, of round ``number``.

    Without a number it is the next unfinished round, so that the same words again want nothing more.

    Raises:
        ConfigError: there is no such stage or round.
    """
    if stage is None:
        raise ConfigError("until_round: says which round `until` means; give that, too")
    last = find_step(run.config, stage, number)
    if last.round is not None and number is None:
        every = steps(run.config)
        left = (step.round for step in every[len(finished(run)) :] if step.round is not None)
        next_round = next(left, len(run.config.rounds) - 1)
        # a round whose rows are read from files has no sampling: the next that has one is meant
        named = [step for step in every if step.word == stage and step.round is not None]
        last = next((step for step in named if (step.round or 0) >= next_round), named[-1])
    return replace(run, until=last.title)

"""Measured checkpoints of a run as far as it got, from whatever stage measured them: what readers of numbers ask."""

from collections.abc import Iterator

from oapl_core.planning.stages import OPTIONAL
from oapl_core.run_folder.measurement import Measurement
from oapl_core.run_folder.run import Run


def during(run: Run) -> Iterator[Measurement]:
    """Yield what was measured before the end of the run, by round."""
    found = (one for stage in OPTIONAL for one in stage.measured(run))
    yield from (each for one in sorted(found, key=lambda one: one.round or 0) for each in one.each())


def measurements(run: Run) -> Iterator[Measurement]:
    """Yield everything that was measured: during the run by round, then at its end.

    One place of an axis may come twice. The later one then has all of the problems, and replaces the earlier.
    """
    yield from during(run)
    end = run.ledger.artifacts().get(run.name(run.evaluation()))
    for split, first in (("heldout", 0), ("validation", 1)):
        for step, (checkpoint, measures) in enumerate(end.details.get(split, {}).items() if end else (), first):
            yield from Measurement(split, step, None, checkpoint, split, measures).each()


def deciding(run: Run) -> list[tuple[int, float]]:
    """List each round that was evaluated during the run with the mean reward of its last epoch, in order.

    On validation problems, where there are any, else on held-out ones. The last round of a run is not among them.
    """
    return [(one.round or 0, float(one.measures["mean_reward"])) for one in during(run) if one.decides]

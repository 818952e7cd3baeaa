"""Measured checkpoints of a run as far as it got, from whatever stage measured them: what readers of numbers ask."""

import re
from collections.abc import Iterator

from oapl_core.planning.stages import OPTIONAL
from oapl_core.run_folder.measurement import Measurement
from oapl_core.run_folder.run import Run

_NAMED = re.compile(r"round (\d+)(?: epoch (\d+))?")
"""Name that results give a checkpoint which the run made."""


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
    for split in ("heldout", "validation") if end else ():
        assert end is not None
        # by name: the ledger has them in no order of rounds
        places = {name: _place(run, split, name, str(end.details.get("chosen"))) for name in end.details.get(split, ())}
        mine = sorted((step, name) for name, step in places.items() if step is not None)
        for step, name in mine:
            yield from Measurement(split, step, None, name, split, end.details[split][name]).each()


def _place(run: Run, split: str, checkpoint: str, chosen: str) -> int | None:
    """Return the place of a checkpoint on the axis of its split; None: others of its round have it, or other axes."""
    named, last = _NAMED.match(checkpoint), len(run.config.rounds) - 1
    if named is None:
        return 0
    number, epoch = int(named[1]), int(named[2] or 0)
    if split == "validation":
        return epoch if number == last else None
    # of several epochs of the last round, which a forced choice compares, the chosen one
    is_only = checkpoint == chosen or not chosen.startswith(f"round {last} epoch")
    return number + 1 if not epoch or (number == last and is_only) else None


def deciding(run: Run) -> list[tuple[int, float]]:
    """List each round that was evaluated during the run with the mean reward of its last epoch, in order.

    On validation problems, where there are any, else on held-out ones. The last round of a run is not among them.
    """
    return [(one.round or 0, float(one.measures["mean_reward"])) for one in during(run) if one.decides]

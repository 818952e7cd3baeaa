"""Size of a round's parts in problems, where `sampling.problems_per_part` leaves it open: decided once for a round.

Reads the ledger and ``1_rollouts/.in_flight/problems_per_part``; ``generate`` writes that file when a round begins, so
that a change of `[fleet]` cuts no unfinished round anew.
"""

import uuid
from contextlib import suppress
from pathlib import Path

from oapl_core.files import fsync
from oapl_core.run_folder.run import Run

MOST = 128
_PARTS_PER_ENGINE = 4
"""Fewer, and engines that are done wait long for the last one."""


def problems_per_part(run: Run, number: int, problems: int) -> int:
    """Return the size of the parts of round ``number``, which samples so many ``problems``."""
    return run.config.of_round(number).sampling.problems_per_part or _begun(run, number) or _fresh(run, problems)


def decide(run: Run, number: int, problems: int) -> int:
    """Decide as ``problems_per_part`` does, and keep the size for this round."""
    size, path = problems_per_part(run, number, problems), _record(run, number)
    if run.config.of_round(number).sampling.problems_per_part is None and not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        # a name of its own: several machines may begin the round at once, and write the same
        temporary = path.with_name(f".tmp-{uuid.uuid4().hex}")
        temporary.write_text(str(size))
        fsync(temporary)
        temporary.rename(path)
    return size


def _record(run: Run, number: int) -> Path:
    return run.in_flight(number) / "problems_per_part"


def _begun(run: Run, number: int) -> int | None:
    """Return the size of parts that the round was begun with; None if it was not begun."""
    folder = f"{run.name(run.rollouts(number))}/"
    for name, entry in run.ledger.artifacts().items():
        if name.startswith(folder) and "problems_per_part" in entry.config:
            return int(entry.config["problems_per_part"])
    with suppress(FileNotFoundError):
        return int(_record(run, number).read_text())
    return None


def _fresh(run: Run, problems: int) -> int:
    # Of machines that join nothing is known before they do, but for how many `shares` are meant.
    engines = run.config.engine.replicas * run.config.shares("rollouts.generate")
    return MOST if engines == 1 else max(1, min(MOST, -(-problems // (_PARTS_PER_ENGINE * engines))))

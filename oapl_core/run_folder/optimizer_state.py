"""Presence on the disk of the optimiser that a round continues (`training.optimizer_state = "continued"`).

Reads the ledger and looks for one folder, which training/saving/continuation.py writes.
"""

from oapl_core.errors import DataError
from oapl_core.run_folder.run import Run


def require_state(run: Run, number: int) -> None:
    """Refuse to train round ``number`` without the optimiser that it continues.

    Raises:
        DataError: that state is not on the disk; says how to make it again, or to do without.
    """
    if not run.config.continues_optimizer(number) or has_state(run, number - 1):
        return
    name = run.name(run.optimizer_state(number - 1))
    removal = run.ledger.removals().get(name)
    there = "is of an earlier version" if run.optimizer_state(number - 1).is_dir() else "is not there"
    why = f"was removed ({removal.rule})" if removal else there
    first = number - 1
    while first > 0 and not has_state(run, first - 1):
        first -= 1
    and_so_on = f", then --round {first + 1} and so on to {number - 1}," if first < number - 1 else ""
    raise DataError(
        f"{run.root}: round {number} continues from {name}, which {why}; `oapl run {run.root} --redo training "
        f"--round {first}`{and_so_on} makes it again, `oapl fork {run.root} NAME --round {number} "
        "training.optimizer_state=fresh` does without it"
    )


def has_state(run: Run, number: int) -> bool:
    """Tell whether the state that round ``number`` left is on the disk, in the form that is read."""
    path = run.optimizer_state(number)
    entry = run.ledger.artifacts().get(run.name(path))
    if entry is None or entry.artifact in run.ledger.removals() or not path.is_dir():
        return False
    # DeepSpeed's own files of one number of ranks, as earlier versions left them
    return "layout" not in entry.details

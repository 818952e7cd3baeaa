"""Artifacts that no longer count: they are moved aside, and the ledger says where to.

Moves artifacts to ``superseded/NNN/`` below the run folder, under the names that they had, and writes a
``supersession`` line of the ledger for each. A kill between the two leaves an artifact that is gone, which is made
again too.
"""

from collections.abc import Iterable
from pathlib import Path

from oapl_core.run_folder.ledger import SupersededEntry
from oapl_core.run_folder.recorded import Recorded
from oapl_core.run_folder.run import SUPERSEDED


def next_folder(run: Recorded) -> Path:
    """Return the folder that is not there yet and takes what is moved next."""
    taken = [int(path.name) for path in (run.root / SUPERSEDED).glob("*") if path.name.isdecimal()]
    return run.root / SUPERSEDED / f"{max(taken, default=0) + 1:03d}"


def move(run: Recorded, names: Iterable[str], aside: Path) -> None:
    """Move the artifacts ``names`` below ``aside``, and record each move."""
    made = run.ledger.artifacts()
    for name in names:
        source, target = run.root / name, aside / name
        if source.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            source.rename(target)
        run.ledger.append(SupersededEntry(name, made[name].sha256, run.name(target)))

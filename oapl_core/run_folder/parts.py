"""Parts of a stage and which process has which: one contract for all stores, and the store that is a folder.

A stage with parts asks ``settled`` which are finished, ``claim``s one that is not, and makes it. Meanwhile it ``keep``s
what would be lost with the process; then it records the part in the ledger and says ``finish``. Any number of processes
on any machines do so at once, until everything is settled. Stores are found by name (``plugins``, kind "store"; setting
`fleet.STAGE.through`). The folder store reads the ledger, and reads and writes ``<stage>/.in_flight/part-00000/``:
``lock``, held with flock, which the kernel frees when a process dies, and pieces.
"""

import fcntl
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Protocol, Self

from oapl_core.plugins import resolve
from oapl_core.run_folder.recorded import Recorded
from oapl_core.run_folder.run import IN_FLIGHT, Run
from oapl_core.settings.operation.fleet import FOLDER

LOCK = "lock"

Details = Mapping[str, Any]
"""Details of a part in the ledger, beside its bytes."""


@dataclass(frozen=True)
class Wanted:
    """Parts that a stage is to make, as a store is told of them."""

    folder: Recorded
    """Whose ledger names the parts."""
    place: Path
    """Folder of the parts."""
    is_made: Callable[[Path], bool]
    """Whether a part is recorded, and made of what it would be made of now."""
    made_of: Mapping[str, Any] = field(default_factory=dict)
    """Everything that a part depends on, in JSON, for machines that do not see the folder; empty: they cannot help."""
    record: Callable[[Path, Callable[[Path], None], Details], None] | None = None
    """Records a part that another machine made, with its details, after comparing what the second argument fetches to
    a path. Raises DataError if it is not what was asked for. Unset: nobody else makes parts."""


class Parts(Protocol):
    """Parts of one stage as one process sees them. As a context manager it keeps its claims, then gives them up.

    What a store's name leads to, a class as a rule, is called with the ``Wanted``. A store that does not answer is a
    delay and a printed line; in the run folder the work continues. A part is named by the path of the file that
    it becomes. One thread calls, but for ``keep``, which another one may.
    """

    def __enter__(self) -> Self:
        """Begin to keep what will be claimed."""
        ...

    def __exit__(self, kind: type[BaseException] | None, _e: BaseException | None, _t: TracebackType | None) -> None:
        """Let others have what is claimed and not finished, with what was kept of it."""
        ...

    def settled(self, parts: Iterable[Path]) -> Mapping[Path, Details]:
        """Find those of ``parts`` that are finished, by whomever, and what is known of them. Asked again and again.

        What another machine has finished is in the ledger then, if this process's folder is the run's.

        Raises:
            Held: the stage is not wanted any more.
        """
        ...

    def claim(self, part: Path) -> bool:
        """Take a part for this process; False if another process has it, or it is settled. Asked again later.

        Of two that claim at once one wins. A process that dies loses its claims to whoever asks next, at once or after
        a lease. What was kept of the part lies in ``in_flight(part)`` then.
        """
        ...

    def keep(self, part: Path, piece: Path) -> None:
        """Keep a file of ``in_flight(part)`` for whoever takes the part over; a store may be late, or away."""
        ...

    def finish(self, part: Path) -> None:
        """Say that a part that is claimed is recorded in this process's ledger, and forget its pieces.

        Of two processes that finish a part the first counts. Killed before, the part is settled or made again.

        Raises:
            Unreachable: others cannot be told; the next start does it.
        """
        ...

    def in_flight(self, part: Path) -> Path:
        """Name the folder of this machine where pieces of a part lie."""
        ...

    def close(self) -> None:
        """Remove what the work left, as every part is settled; called by one process of the run's machine."""
        ...


def store_of(wanted: Wanted, stage: str) -> Parts:
    """Open the store in which processes of ``stage`` claim parts, by the settings of the run; a folder without any."""
    machines = wanted.folder.config.machines(stage) if isinstance(wanted.folder, Run) else None
    found: Parts = resolve("store", machines.through if machines else FOLDER)(wanted)
    return found


class FolderParts:
    """Parts that processes claim by locks in the run folder, which all of them see."""

    def __init__(self, wanted: Wanted) -> None:
        """Take the ``wanted`` parts; nothing is claimed yet."""
        self._run, self._place, self._is_made = wanted.folder, wanted.place, wanted.is_made
        self._locks: dict[Path, IO[str]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _e: BaseException | None, _t: TracebackType | None) -> None:
        for part in list(self._locks):
            self.give_up(part)

    def settled(self, parts: Iterable[Path]) -> dict[Path, Details]:
        """Find those that are recorded as they would be made now."""
        recorded = self._run.ledger.artifacts()  # once: it may have thousands of lines
        named = ((part, recorded.get(self._run.name(part))) for part in parts)
        return {part: entry.details for part, entry in named if entry and self._is_made(part)}

    def claim(self, part: Path) -> bool:
        """Take the part's lock, if it is free."""
        if (file := lock(self.in_flight(part))) is None:
            return False
        # Looked at now that nobody else can finish it: another process may have done so just before we had the lock.
        if self._is_made(part):
            unlock(self.in_flight(part), file)
            self._tidy()
            return False
        self._locks[part] = file
        return True

    def keep(self, part: Path, piece: Path) -> None:
        """Do nothing: whoever takes the part over finds the piece where it is."""

    def finish(self, part: Path) -> None:
        """Delete its pieces, and then its lock: until then no other process can claim it and read what vanishes."""
        # Where a file system keeps flock to each machine, another one may have made this part, too, and removed all.
        with suppress(FileNotFoundError):
            for piece in self.in_flight(part).iterdir():
                if piece.name != LOCK:
                    piece.unlink(missing_ok=True)
        self.give_up(part)

    def give_up(self, part: Path) -> None:
        """Let others have a part that was claimed."""
        unlock(self.in_flight(part), self._locks.pop(part))
        self._tidy()

    def in_flight(self, part: Path) -> Path:
        """Name the folder of its lock and its pieces, which no pattern for parts matches."""
        return self._place / IN_FLIGHT / part.stem

    def close(self) -> None:
        """Remove what a process left that was killed after it had recorded its part.

        What a living process has it deletes itself: it may still write a piece of a part that it has just recorded.
        """
        place = self._place / IN_FLIGHT
        with suppress(OSError):  # another process took it away; or the disk refuses, which ends no work that is whole
            for left in list(place.iterdir()):
                if not left.is_dir():
                    left.unlink(missing_ok=True)
                elif (held := lock(left)) is not None:
                    shutil.rmtree(left, ignore_errors=True)
                    held.close()
            place.rmdir()  # unless other parts are in flight

    def _tidy(self) -> None:
        with suppress(OSError):  # other parts are in flight
            (self._place / IN_FLIGHT).rmdir()


def unlock(folder: Path, file: IO[str]) -> None:
    """Give up the lock of a part, and the folder if nothing else is in it."""
    (folder / LOCK).unlink(missing_ok=True)
    with suppress(OSError):  # it has pieces, or another process is just looking whether the part is free
        folder.rmdir()
    file.close()


def lock(folder: Path) -> IO[str] | None:
    """Take the lock of the part that ``folder`` is of, held until it is closed; None if another process has it."""
    path = folder / LOCK
    try:
        with suppress(FileExistsError):  # mkdir found it, and it was gone when mkdir looked whether it is a folder
            folder.mkdir(parents=True, exist_ok=True)
        file = path.open("a+")
    except FileNotFoundError:
        return None  # its last holder has just finished it and removed the folder
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The holder before us may have deleted the file between our opening and locking it. Then we hold a lock on a
        # file that nobody else sees, and the next process makes and locks another one under the same name.
        held = os.fstat(file.fileno()).st_ino == path.stat().st_ino
    except (BlockingIOError, FileNotFoundError):
        held = False
    if not held:
        file.close()
        return None
    with suppress(OSError):  # only said to a person; a full disk will be noticed where it matters
        os.truncate(file.fileno(), 0)
        os.write(file.fileno(), f"process {os.getpid()} on {os.uname().nodename}".encode())
    return file

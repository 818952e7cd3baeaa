"""Parts of a stage and which process has which: one contract for all stores, and the store that is a folder.

A stage with parts asks ``settled`` which are finished, ``claim``s one that is not, and makes it. Meanwhile it ``keep``s
what would be lost with the process; then it records the part in the ledger and says ``finish``. Any number of processes
on any machines do so at once, until everything is settled. The folder store reads the ledger, and reads and writes
``<stage>/.in_flight/part-00000/``: ``lock``, held with flock, which the kernel frees when a process dies, and pieces.
"""

import fcntl
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Protocol, Self

from oapl_core.run_folder.recorded import Recorded
from oapl_core.run_folder.run import IN_FLIGHT

LOCK = "lock"

Details = Mapping[str, Any]
"""Details of a part in the ledger, beside its bytes."""


class Parts(Protocol):
    """Parts of one stage as one process sees them. As a context manager it keeps its claims, then gives them up.

    A part is named by the path of the file that it becomes. One thread calls, but for ``keep``, which another one may.
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


class FolderParts:
    """Parts that processes claim by locks in the run folder, which all of them see."""

    def __init__(self, run: Recorded, is_made: Callable[[Path], bool]) -> None:
        """``is_made``: whether a part is recorded, and made of what it would be made of now."""
        self._run, self._is_made = run, is_made
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
        file = lock(self.in_flight(part))
        if file is None:
            return False
        # Looked at now that nobody else can finish it: another process may have done so just before we had the lock.
        if self._is_made(part):
            unlock(self.in_flight(part), file)
            self._tidy(part)
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
        self._tidy(part)

    def in_flight(self, part: Path) -> Path:
        """Name the folder of its lock and its pieces, which no pattern for parts matches."""
        return part.parent / IN_FLIGHT / part.stem

    def _tidy(self, part: Path) -> None:
        with suppress(OSError):  # other parts are in flight
            (part.parent / IN_FLIGHT).rmdir()


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

"""Parts of a round that machines claim which do not see the run folder: the store "mirror" (run_folder/parts.py).

The processes of one folder claim parts by locks among each other, and for all of them in the queue (``part_queue.py``).
The run folder takes what others have finished as if it had been made here, once it was compared with what the round
asks for. A machine that joined sends what it has finished.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from oapl_core.errors import DataError
from oapl_core.progress import say
from oapl_core.run_folder.parts import Details, FolderParts, Wanted
from oapl_core.run_folder.run import Run
from oapl_extras.remote.object_store import ObjectStore, Unreachable
from oapl_extras.remote.part_queue import LEASE_S, Opened, PartQueue


class MirrorParts:
    """One process's side of the queue, as the Protocol ``Parts`` has it."""

    def __init__(self, wanted: Wanted, lease_s: float = LEASE_S, joined: PartQueue | None = None) -> None:
        """Take the ``wanted`` parts of a run; or of a machine that joined, with its queue.

        Raises:
            ConfigError: the mirror's URL cannot be used.
        """
        self._wanted, self._local, self._is_holder = wanted, FolderParts(wanted), joined is None
        self._queue = joined or _queue_of(wanted, lease_s)
        self._has_looked = False

    @staticmethod
    def serve(url: str, folder: Path, tell: Callable[[str], None], idle_s: float, number: int | None) -> None:
        """Make parts on this machine, which does not see the run folder, as ``joining.serve`` says."""
        from oapl_extras.remote.joining import serve  # which starts a process that imports this

        serve(url, folder, tell, idle_s=idle_s, number=number)

    def __enter__(self) -> Self:
        """Begin to renew what will be claimed."""
        self._queue.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give up what is claimed, in the queue first: whoever has the lock of a part may claim it there."""
        self._queue.__exit__(kind, error, trace)
        self._local.__exit__(kind, error, trace)

    def settled(self, parts: Iterable[Path]) -> Mapping[Path, Details]:
        """Find those that are recorded here, or finished by another machine; the run folder has them then."""
        asked = list(parts)
        found: dict[Path, Details] = self._local.settled(asked)
        if not self._has_looked:  # what an earlier process was killed before it had sent
            self._has_looked = True
            for part in found:
                if self._queue.done(part.stem) is None:
                    self._send(part)
        for part in asked:
            if part not in found and (record := self._queue.done(part.stem)):
                if not self._is_holder:
                    found[part] = record["details"]
                elif self._local.claim(part):  # of the processes in this folder one fetches it, or makes it
                    if self._take(part, record):
                        found[part] = record["details"]
                        self._local.finish(part)
                    else:
                        self._local.give_up(part)
        return found

    def claim(self, part: Path) -> bool:
        """Take a part in this folder, then in the queue, with the answers that others left of it."""
        # The lock first: what a dead process of this folder had claimed in the queue is free to whoever has its lock.
        if not self._local.claim(part):
            return False
        if not self._queue.claim(part.stem):
            self._local.give_up(part)
            return False
        self._queue.fetch_pieces(part.stem, self.in_flight(part))
        return True

    def keep(self, part: Path, piece: Path) -> None:
        """Send answers of a part in flight."""
        self._queue.keep(part.stem, piece)

    def finish(self, part: Path) -> None:
        """Say that a part is finished, and give its file to the run unless this is it."""
        self._send(part)
        self._queue.give_up(part.stem)
        self._local.finish(part)

    def in_flight(self, part: Path) -> Path:
        """Name the folder of this machine where pieces of a part lie."""
        return self._local.in_flight(part)

    def close(self) -> None:
        """Remove what is left in this folder, and the queue."""
        self._local.close()
        self._queue.close()

    def _send(self, part: Path) -> None:
        run = self._wanted.folder
        details = run.ledger.artifacts()[run.name(part)].details
        self._queue.finish(part.stem, None if self._is_holder else part, details)

    def _take(self, part: Path, record: Mapping[str, Any]) -> bool:
        """Record the file of another machine, if it is what was asked for; else have the part made again."""
        assert self._wanted.record, "the mirror is for parts that other machines can make"

        def fetch(path: Path) -> None:
            if not record["answers"]:
                raise DataError("has no file")
            if not self._queue.fetch(part.stem, record, path):
                raise DataError("is not the file that was sent")

        try:
            self._wanted.record(part, fetch, record["details"])
        except Unreachable as error:
            say(f"{part.name}: {error}; its answers are fetched later")
            return False
        except DataError as error:
            say(f"{part.name} in the queue {error}; it is sampled again")
            self._queue.reopen(part.stem)
            return False
        say(f"{part.name}: sampled by another machine")
        return True


def _queue_of(wanted: Wanted, lease_s: float) -> PartQueue:
    run = wanted.folder
    assert isinstance(run, Run) and run.config.mirror, "settings that say so have a mirror"
    store, opened = ObjectStore(run.config.mirror, run.root.name), Opened(token="", **wanted.made_of)
    return PartQueue(store, opened, "the run folder", lease_s, needs_store=False)

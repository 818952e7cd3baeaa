"""Parts that are being sampled: which process has which, and where their finished answers wait on disk.

Reads and writes ``1_rollouts/.in_flight/part-00000/``, which lives until the part is recorded. ``lock`` is held with
flock by the process that samples the part, so the kernel frees a dead one's. ``*.piece`` are answers that finished
since the last flush, as small Parquet files (tables.ROLLOUTS). A piece's name holds the hash of its bytes and of what
the part depends on. A torn or edited piece, or one made from other weights or settings, is deleted and sampled again.
No pattern for parts (``part-*.parquet``, also below subfolders) matches any of them. ``*.turns``, named alike, holds
the part's unfinished trajectories after their last finished turn; each flush replaces the one before. Environments are
objects of a person's own classes, so it is a pickle. It never leaves this folder. None is taken from a queue
(``part_queue.py``) or a mirror, whose names for the hashes anybody can compute.
"""

import hashlib
import json
import pickle
import shutil
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from oapl_core.errors import DataError
from oapl_core.files import fsync, sha256_of
from oapl_core.progress import say
from oapl_core.rollouts.parts import Part, Row
from oapl_core.rollouts.remote.part_queue import PIECE, PartQueue
from oapl_core.run_folder.parts import LOCK, lock, unlock
from oapl_core.run_folder.run import IN_FLIGHT
from oapl_core.tables import ROLLOUTS, read_table, write_table

_SUFFIX, _TURNS = PIECE, ".turns"
_DIGITS = 16


class InFlight:
    """The parts that this process has claimed. As a context manager it flushes them from a thread of its own.

    Answers are not flushed when one is finished but by the clock: the next may take an hour.
    """

    def __init__(
        self,
        folder: Path,
        inputs: Mapping[str, str],
        settings: Mapping[str, Any],
        flush_s: float,
        queue: PartQueue | None = None,
    ) -> None:
        """Take ``folder`` with the round's parts, which depend on ``inputs`` and ``settings``.

        With ``queue`` a part must be claimed there too, and its pieces are kept there as well.
        """
        self._queue = queue
        self._folder, self._flush_s = folder / IN_FLIGHT, flush_s
        content = json.dumps([dict(inputs), dict(settings)], sort_keys=True, default=str)
        self._key = hashlib.sha256(content.encode()).hexdigest()[:_DIGITS]
        self._locks: dict[str, IO[str]] = {}
        self._new: dict[str, list[Row]] = {}
        """Rows that are not on disk yet, by part; guarded by ``_adding``."""
        self._turns: dict[str, dict[str, bytes]] = {}
        """Unfinished trajectories by part and key, and which parts' are not on disk as they are; guarded alike."""
        self._changed = set[str]()
        # Two locks, since one would let the engine wait for the disk. `_adding` is held for moments, by whoever touches
        # `_new`; `_writing` for as long as pieces are written or deleted, so that none is written for a part that is
        # being released. Who takes both takes `_writing` first.
        self._adding, self._writing = threading.Lock(), threading.Lock()
        self._stop = threading.Event()
        self._thread = ThreadPoolExecutor(1, "flush")

    def __enter__(self) -> Self:
        """Start flushing by the clock."""
        self._flushed = self._thread.submit(self._flush_by_the_clock)
        return self

    def __exit__(self, kind: type[BaseException] | None, _e: BaseException | None, _t: TracebackType | None) -> None:
        """Give up every part; if the body failed, what it finished is kept."""
        self._stop.set()
        self._thread.shutdown()
        if kind is not None:
            with suppress(OSError):  # the first error is the one to tell
                self.flush()
        for file in self._locks.values():
            file.close()
        self._locks.clear()
        if kind is None:  # an error of the flushing thread must not hide the body's
            self._flushed.result()

    def claim(self, part: Part) -> bool:
        """Take ``part`` for this process, with the answers that an earlier one left; False if another process has it.

        Ask afterwards whether it is still missing: another process may have finished it meanwhile.
        """
        file = lock(self._of(part))
        if file is None:
            return False
        # The lock first: what a dead process of this folder had claimed in the queue is free to whoever has its lock.
        if self._queue and not self._queue.claim(part.path.stem):
            unlock(self._of(part), file)
            return False
        self._locks[part.path.name] = file
        if self._queue:
            self._queue.fetch_pieces(part.path.stem, self._of(part))
        for piece in sorted(self._of(part).iterdir()):
            if piece.name != LOCK:
                self._take_over(piece, part)
        return True

    def add(self, part: Part, row: Row) -> None:
        """Add a row to be flushed soon.

        Raises:
            OSError: an earlier flush failed, for example because the disk is full.
        """
        if self._flushed.done():
            self._flushed.result()
        with self._adding:
            self._new.setdefault(part.path.name, []).append(row)
            if self._turns.get(part.path.name, {}).pop(row["rollout_id"], None):
                self._changed.add(part.path.name)

    def keep_turns(self, part: Part, key: str, state: bytes) -> None:
        """Keep a trajectory after a finished turn, to be flushed soon."""
        with self._adding:
            self._turns.setdefault(part.path.name, {})[key] = state
            self._changed.add(part.path.name)

    def turns(self, part: Part, key: str) -> bytes | None:
        """Return the state of a trajectory that an earlier process did not finish."""
        with self._adding:
            return self._turns.get(part.path.name, {}).get(key)

    def release(self, part: Part) -> None:
        """Delete the pieces of ``part``, which is recorded, and then its lock."""
        with self._adding:
            self._new.pop(part.path.name, None)
            self._turns.pop(part.path.name, None)
            self._changed.discard(part.path.name)
        with self._writing:
            folder = self._of(part)
            # The lock is deleted last: until then no other process can claim the part and read pieces that vanish.
            for piece in [*folder.glob(f"*{_SUFFIX}"), *folder.glob(f"*{_TURNS}")]:
                piece.unlink(missing_ok=True)
            if self._queue:
                self._queue.give_up(part.path.stem)
            unlock(folder, self._locks.pop(part.path.name))
            with suppress(OSError):  # other parts are in flight; whoever swept meanwhile left the folder to us
                self._folder.rmdir()

    def flush(self) -> None:
        """Write the rows that are not on disk yet: one piece for each part that has any.

        Raises:
            OSError: the disk is full or read-only; the rows stay in memory, and the pieces before are whole.
        """
        with self._writing:
            with self._adding:
                unwritten = {name: list(rows) for name, rows in self._new.items() if rows}
                turns = {name: dict(self._turns.get(name, {})) for name in self._changed}
                self._changed.clear()
            for name, rows in unwritten.items():
                self._write(self._folder / Path(name).stem, rows)
                with self._adding:
                    if name in self._new:  # rows were added, or the part was released, while the disk was busy
                        self._new[name] = self._new[name][len(rows) :]
            for name, states in turns.items():  # behind the rows: a trajectory is in one of the two at any moment
                self._write_turns(self._folder / Path(name).stem, states)

    def _flush_by_the_clock(self) -> None:
        while not self._stop.wait(self._flush_s):
            self.flush()

    def _of(self, part: Part) -> Path:
        return self._folder / part.path.stem

    def _write(self, folder: Path, rows: list[Row]) -> None:
        temporary = folder / ".tmp-piece"
        try:
            write_table(temporary, ROLLOUTS, rows)
            fsync(temporary)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        piece = temporary.rename(folder / f"{self._key}-{sha256_of(temporary)[:_DIGITS]}{_SUFFIX}")
        fsync(folder, below=False)
        if self._queue:
            self._queue.keep(folder.name, piece)

    def _write_turns(self, folder: Path, states: dict[str, bytes]) -> None:
        temporary, older = folder / ".tmp-turns", list(folder.glob(f"*{_TURNS}"))
        temporary.write_bytes(pickle.dumps(states))
        fsync(temporary)
        new = temporary.rename(folder / f"{self._key}-{sha256_of(temporary)[:_DIGITS]}{_TURNS}")
        fsync(folder, below=False)
        for path in older:
            if path != new:
                path.unlink(missing_ok=True)

    def _take_over(self, piece: Path, part: Part) -> None:
        """Put its rows into ``part`` if it is whole and was made from the same inputs and settings; else delete it."""
        key, _, digest = piece.stem.partition("-")
        if piece.suffix in (_SUFFIX, _TURNS) and key == self._key:
            with suppress(DataError, ValueError):  # a machine that joined may have sent anything under a right name
                if sha256_of(piece)[:_DIGITS] == digest:
                    if piece.suffix == _TURNS:
                        self._turns.setdefault(part.path.name, {}).update(pickle.loads(piece.read_bytes()))
                        return
                    rows = read_table(piece, ROLLOUTS).to_pylist()
                    part.put_all(rows)
                    return
            say(f"{piece}: is damaged; its answers are sampled again")
        piece.unlink()


def sweep(folder: Path) -> None:
    """Remove what a process left that was killed after it had recorded its part. All parts must be recorded.

    What a living process has it deletes itself: it may still write a piece of a part that it has just recorded.
    """
    place = folder / IN_FLIGHT
    with suppress(OSError):  # another process took it away; or the disk refuses, which ends no round that is whole
        for left in list(place.iterdir()):
            if not left.is_dir():
                left.unlink(missing_ok=True)
            elif (held := lock(left)) is not None:
                shutil.rmtree(left, ignore_errors=True)
                held.close()
        place.rmdir()  # unless other parts are in flight

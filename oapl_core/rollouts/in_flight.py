"""Parts that are being sampled: where their finished answers wait on disk.

Reads and writes the folder of a part in flight (``run_folder/parts.py``), ``1_rollouts/.in_flight/part-00000/``, which
lives until the part is recorded. ``*.piece`` are answers that finished
since the last flush, as small Parquet files (tables.ROLLOUTS). A piece's name holds the hash of its bytes and of what
the part depends on. A torn or edited piece, or one made from other weights or settings, is deleted and sampled again.
No pattern for parts (``part-*.parquet``, also below subfolders) matches any of them. ``*.turns``, named alike, holds
the part's unfinished trajectories after their last finished turn; each flush replaces the one before. Environments are
objects of a person's own classes, so it is a pickle. It never leaves this folder, and no store may put one there:
anybody can compute names for the hashes.
"""

import hashlib
import json
import pickle
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from oapl_core.errors import DataError
from oapl_core.files import fsync, sha256_of
from oapl_core.progress import say
from oapl_core.rollouts.parts import Part, Row
from oapl_core.run_folder.parts import LOCK, Parts
from oapl_core.tables import ROLLOUTS, read_table, write_table

PIECE, _BEGUN = ".piece", ".turns"
_DIGITS = 16


class InFlight:
    """Answers of parts that this process has claimed. As a context manager it flushes them from a thread of its own.

    Answers are not flushed when one is finished but by the clock: the next may take an hour.
    """

    def __init__(self, parts: Parts, inputs: Mapping[str, str], settings: Mapping[str, Any], flush_s: float) -> None:
        """Take ``parts``, which depend on ``inputs`` and ``settings``; their context is around this one."""
        self._parts, self._flush_s = parts, flush_s
        content = json.dumps([dict(inputs), dict(settings)], sort_keys=True, default=str)
        self._key = hashlib.sha256(content.encode()).hexdigest()[:_DIGITS]
        self._new: dict[Path, list[Row]] = {}
        """Rows that are not on disk yet, by part; guarded by ``_adding``."""
        self._begun: dict[Path, dict[str, bytes]] = {}
        """Unfinished trajectories by part and key, and which parts' are not on disk as they are; guarded alike."""
        self._changed = set[Path]()
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
        """End flushing; if the body failed, what it finished is kept."""
        self._stop.set()
        self._thread.shutdown()
        if kind is not None:
            with suppress(OSError):  # the first error is the one to tell
                self.flush()
        if kind is None:  # an error of the flushing thread must not hide the body's
            self._flushed.result()

    def claim(self, part: Part) -> bool:
        """Take ``part`` for this process, with the answers that an earlier one left; False if it is not to be had."""
        if not self._parts.claim(part.path):
            return False
        for piece in sorted(self._parts.in_flight(part.path).iterdir()):
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
            self._new.setdefault(part.path, []).append(row)
            if self._begun.get(part.path, {}).pop(row["rollout_id"], None):
                self._changed.add(part.path)

    def keep_state(self, part: Part, key: str, state: bytes) -> None:
        """Keep a trajectory after a finished turn, to be flushed soon."""
        with self._adding:
            self._begun.setdefault(part.path, {})[key] = state
            self._changed.add(part.path)

    def state(self, part: Part, key: str) -> bytes | None:
        """Return the state of a trajectory that an earlier process did not finish."""
        with self._adding:
            return self._begun.get(part.path, {}).get(key)

    def release(self, part: Part) -> None:
        """Forget the answers of ``part``, which is recorded, and let others know that it is finished.

        Raises:
            Unreachable: others cannot be told; the next start does it.
        """
        # after a flush that has seen its rows: it would write a piece into a folder that is going
        with self._writing, self._adding:
            self._new.pop(part.path, None)
            self._begun.pop(part.path, None)
            self._changed.discard(part.path)
        self._parts.finish(part.path)

    def flush(self) -> None:
        """Write the rows that are not on disk yet: one piece for each part that has any.

        Raises:
            OSError: the disk is full or read-only; the rows stay in memory, and the pieces before are whole.
        """
        with self._writing:
            with self._adding:
                unwritten = {part: list(rows) for part, rows in self._new.items() if rows}
                begun = {part: dict(self._begun.get(part, {})) for part in self._changed}
                self._changed.clear()
            for part, rows in unwritten.items():
                self._write(part, rows)
                with self._adding:  # rows were added while the disk was busy
                    self._new[part] = self._new[part][len(rows) :]
            for part, states in begun.items():  # behind the rows: a trajectory is in one of the two at any moment
                self._write_begun(self._parts.in_flight(part), states)

    def _flush_by_the_clock(self) -> None:
        while not self._stop.wait(self._flush_s):
            self.flush()

    def _write(self, part: Path, rows: list[Row]) -> None:
        folder = self._parts.in_flight(part)
        temporary = folder / ".tmp-piece"
        try:
            write_table(temporary, ROLLOUTS, rows)
            fsync(temporary)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        piece = temporary.rename(folder / f"{self._key}-{sha256_of(temporary)[:_DIGITS]}{PIECE}")
        fsync(folder, below=False)
        self._parts.keep(part, piece)

    def _write_begun(self, folder: Path, states: dict[str, bytes]) -> None:
        temporary, older = folder / ".tmp-turns", list(folder.glob(f"*{_BEGUN}"))
        temporary.write_bytes(pickle.dumps(states))
        fsync(temporary)
        new = temporary.rename(folder / f"{self._key}-{sha256_of(temporary)[:_DIGITS]}{_BEGUN}")
        fsync(folder, below=False)
        for path in older:
            if path != new:
                path.unlink(missing_ok=True)

    def _take_over(self, piece: Path, part: Part) -> None:
        """Put its rows into ``part`` if it is whole and was made from the same inputs and settings; else delete it."""
        key, _, digest = piece.stem.partition("-")
        if piece.suffix in (PIECE, _BEGUN) and key == self._key:
            with suppress(DataError, ValueError):  # a machine that joined may have sent anything under a right name
                if sha256_of(piece)[:_DIGITS] == digest:
                    if piece.suffix == _BEGUN:
                        self._begun.setdefault(part.path, {}).update(pickle.loads(piece.read_bytes()))
                        return
                    rows = read_table(piece, ROLLOUTS).to_pylist()
                    part.put_all(rows)
                    return
            say(f"{piece}: is damaged; its answers are sampled again")
        piece.unlink()

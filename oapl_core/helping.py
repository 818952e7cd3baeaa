"""Work on a run folder that another process holds, perhaps on another machine: one stage, for as long as it holds it.

The helper keeps a shared lock on ``run.helpers``, which the guard of its stage inherits; whoever takes the run folder
next waits until that is free (``lock.py``), so it never meets a stage of the holder before. Reads ``run.lock``, from
which the helper knows that its holder is gone: the kernel's lock is free, or names another one. Where a file system
keeps flock to each machine, the holder's heartbeat stands still.
"""

import fcntl
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from oapl_core.errors import ConfigError, Held
from oapl_core.lock import HELPERS, Owner, inherited

LOOK_S = 1.0
"""How often the helper looks after its holder."""
SILENT_S = 15.0
"""How long a heartbeat may stand still; three beats, and less than what a take-over waits."""


@contextmanager
def helping(run_dir: Path, holder: str, look_s: float = LOOK_S, silent_s: float = SILENT_S) -> Iterator[None]:
    """Work for ``holder``, the token of the owner that ``run.lock`` names; SIGTERM to this process when it is gone.

    Raises:
        ConfigError: this machine does not see the run folder.
        Held: the holder is gone already, and perhaps another one works there.
    """
    root = run_dir.resolve()
    if not (root / "run.lock").is_file():
        raise ConfigError(
            f"{run_dir}: is not there on {os.uname().nodename}; every machine of the fleet must see the run folder "
            "under this path"
        )
    descriptor = os.open(root / HELPERS, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        watch = _Watch(root / "run.lock", holder, look_s, silent_s)
        if watch.gone():
            raise Held(f"{run_dir}: whoever asked for this stage does not hold the run folder any more")
        with inherited(root / HELPERS, descriptor):
            thread = threading.Thread(target=watch.until_over, name="holder of run.lock", daemon=True)
            thread.start()
            try:
                yield
            finally:
                watch.over.set()
                thread.join()
    finally:
        os.close(descriptor)  # a guard that still ends its stage keeps the lock


class _Watch:
    """Looks whether the holder still holds the folder."""

    def __init__(self, lock: Path, holder: str, look_s: float, silent_s: float) -> None:
        self._lock, self._holder, self._look_s, self._silent_s = lock, holder, look_s, silent_s
        self.over = threading.Event()
        self._seen_s, self._heartbeat = time.monotonic(), ""
        self._kernel_tells = not self._is_free()
        """Whether the holder's flock is seen here; it is, unless the file system keeps it to the holder's machine."""

    def gone(self) -> bool:
        """Whether somebody else holds it, or nobody."""
        if self._kernel_tells and self._is_free():
            return True
        owner = Owner.read(self._lock)
        if owner is None:  # released, or caught in the middle of a heartbeat
            time.sleep(0.2)
            owner = Owner.read(self._lock)
        if owner is None or owner.token != self._holder:
            return True
        if owner.heartbeat != self._heartbeat:
            self._seen_s, self._heartbeat = time.monotonic(), owner.heartbeat
        return time.monotonic() - self._seen_s > self._silent_s

    def until_over(self) -> None:
        """In a thread."""
        while not self.over.wait(self._look_s):
            try:
                if self.gone():
                    os.kill(os.getpid(), signal.SIGTERM)
                    return
            except OSError:  # a file server that is away: nothing is known; the heartbeat tells when it is back
                continue

    def _is_free(self) -> bool:
        """Whether no process has the kernel's lock; held by us only for a moment."""
        with self._lock.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

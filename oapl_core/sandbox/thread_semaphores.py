"""multiprocessing's semaphores by means of threads: the real ones need shared memory, and there are no other processes.

With them `multiprocessing.dummy` and `multiprocessing.pool.ThreadPool` work; `Process` still fails at its fork.
"""

from __future__ import annotations

import importlib
import threading
from types import TracebackType


class SemLock:
    """As `_multiprocessing.SemLock`, for one process."""

    SEM_VALUE_MAX = 2**31 - 1

    def __init__(self, kind: int, value: int, maxvalue: int, name: str, unlink: bool) -> None:
        """`kind` 0 is a recursive mutex, 1 a semaphore."""
        self.kind, self.maxvalue, self.handle = kind, maxvalue, 0
        self.name = None  # a named one would be registered with a process that tidies up
        self._value, self._owner, self._depth = value, 0, 0
        self._changed = threading.Condition()

    def acquire(self, block: bool = True, timeout: float | None = None) -> bool:
        """Takes it; false if that is not possible now, or within `timeout` seconds."""
        me = threading.get_ident()
        with self._changed:
            if self.kind == 0 and self._owner == me:
                self._depth += 1
                return True
            if not self._changed.wait_for(lambda: self._value > 0, timeout if block else 0):
                return False
            self._value, self._owner, self._depth = self._value - 1, me, 1
            return True

    def release(self) -> None:
        """Gives it back. Raises AssertionError or ValueError as the real one."""
        with self._changed:
            if self.kind == 0:
                if self._owner != threading.get_ident():
                    raise AssertionError("attempt to release recursive lock not owned by thread")
                self._depth -= 1
                if self._depth:
                    return
                self._owner = 0
            elif self._value >= self.maxvalue:
                raise ValueError("semaphore or lock released too many times")
            self._value += 1
            self._changed.notify()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, _k: type[BaseException] | None, _e: BaseException | None, _t: TracebackType | None) -> None:
        self.release()

    def _count(self) -> int:
        return self._depth if self._is_mine() else 0

    def _is_mine(self) -> bool:
        return self._depth > 0 and self._owner == threading.get_ident()

    def _get_value(self) -> int:
        return self._value

    def _is_zero(self) -> bool:
        return self._value == 0

    def _after_fork(self) -> None:
        self._depth = 0


def use_thread_semaphores() -> None:
    """Puts them in the place of the C module's, in this process, before multiprocessing is imported."""
    vars(importlib.import_module("_multiprocessing")).update(SemLock=SemLock, sem_unlink=lambda name: None)

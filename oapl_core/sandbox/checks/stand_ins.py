"""Stand-ins for parts of the interpreter that are missing in the jail: `/dev/stdin`, and multiprocessing's semaphores.

There is no /proc for /dev/stdin to point into. Semaphores need shared memory; here only threads share them, since there
are no other processes: `multiprocessing.dummy` and `multiprocessing.pool.ThreadPool` work, `Process` fails at its
fork.
"""

from __future__ import annotations

import builtins
import importlib
import io
import os
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

_STDIN_NAMES = ("/dev/stdin", "/dev/fd/0", "/proc/self/fd/0")


def alias_stdin() -> Callable[..., Any]:
    """Make `open`, `io.open` (so pathlib, too) and `os.open` know the name from now on; returns the new `open`."""
    real_open, real_os_open = io.open, os.open

    def alias_open(file: Any, *arguments: Any, **named: Any) -> Any:
        return real_open(os.dup(0) if _is_stdin(file) else file, *arguments, **named)

    def alias_os_open(path: Any, *arguments: Any, **named: Any) -> int:
        return os.dup(0) if _is_stdin(path) else real_os_open(path, *arguments, **named)

    alias_open.__name__ = alias_os_open.__name__ = "open"
    builtins.open = io.open = alias_open
    os.open = alias_os_open
    return alias_open


def _is_stdin(file: Any) -> bool:
    if isinstance(file, int):
        return False
    try:
        return os.fsdecode(file) in _STDIN_NAMES
    except TypeError:
        return False


class SemLock:
    """Semaphore or lock with the interface of `_multiprocessing.SemLock`, for one process."""

    SEM_VALUE_MAX = 2**31 - 1

    def __init__(self, kind: int, value: int, maxvalue: int, name: str, unlink: bool) -> None:
        """Make a lock: `kind` 0 is a recursive mutex, 1 a semaphore."""
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
        """Release the lock or semaphore. Raises AssertionError or ValueError like the real one."""
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


def use_thread_semaphores() -> None:
    """Puts them in the place of the C module's, in this process, before multiprocessing is imported."""
    vars(importlib.import_module("_multiprocessing")).update(SemLock=SemLock, sem_unlink=lambda name: None)

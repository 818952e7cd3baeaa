"""Progress of a long stage as plain lines: what, done/total, rate, time left, or so far where that is not known.

A stage prints them to its standard output, which is its log file; ``launch.py`` forwards them to whoever waits.
"""

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Self, TextIO

from oapl_core.storable import one_line

PREFIX = "progress | "
_SETTLED_S = 5.0
"""Seconds of work before the remaining time is shown: the first unit also waits for workers to start."""


class Progress:
    """Prints at most one line every ``every_s`` seconds, and a last one when it is closed."""

    def __init__(
        self, what: str, total: int, unit: str, every_s: float = 2.0, tell: Callable[[str], None] | None = None
    ) -> None:
        """Prepare a bar: ``what`` is said first; ``total`` counts ``unit``s (a plural noun); ``tell`` replaces
        `say`.
        """
        self._tell = tell or say
        self.what, self.total, self.unit, self.every_s = what, total, unit, every_s
        self.done = 0
        self._skipped = 0
        self._start = self._last = time.monotonic()
        self._note = ""

    def skip(self, count: int) -> None:
        """Count ``count`` units that an earlier run finished; they do not enter the rate."""
        self.done += count
        self._skipped += count

    def advance(self, count: int = 1, note: str = "") -> None:
        """Count ``count`` finished units; ``note`` is appended to the line (a loss, a pass rate)."""
        self.done += count
        self._note = note or self._note
        if time.monotonic() - self._last >= self.every_s:
            self._print()

    def __enter__(self) -> Self:
        """Start the clock of the progress."""
        self._start = self._last = time.monotonic()
        return self

    def __exit__(self, kind: type[BaseException] | None, _e: BaseException | None, _t: TracebackType | None) -> None:
        """Print the last line, unless the stage failed."""
        if kind is None:
            self._print()

    def _print(self) -> None:
        self._last = time.monotonic()
        seconds = max(self._last - self._start, 1e-9)
        worked = self.done - self._skipped
        rate = worked / seconds
        if self.done >= self.total:
            clock = f"{seconds:.0f} s"
        elif worked > 1 and seconds >= _SETTLED_S:
            clock = f"{(self.total - self.done) / rate:.0f} s left"
        else:
            clock = f"{seconds:.0f} s so far"
        rates = [f"{rate:.3g}/s"] if worked else []
        parts = [self.what, f"{self.done}/{self.total} {self.unit}", *rates, clock]
        self._tell(" | ".join(parts + ([self._note] if self._note else [])))


@dataclass(frozen=True)
class Reading:
    """Content of one progress line."""

    line: str
    done: int
    total: int

    @property
    def percent(self) -> float:
        """From 0 to 100."""
        return 100.0 * min(self.done, self.total) / max(1, self.total)

    @classmethod
    def of(cls, line: str) -> Self | None:
        """Parse ``what | done/total unit | ...``; None for any other line."""
        _, bar, rest = line.partition(" | ")
        done, slash, total = rest.partition(" ")[0].partition("/")
        if not (bar and slash and done.isdecimal() and total.isdecimal()):
            return None
        return cls(line, int(done), int(total))


def say(text: str) -> None:
    """Print one line that is forwarded to the person who waits, whatever an id or a path in it has."""
    written(sys.stdout, f"{PREFIX}{one_line(text)}\n")


def written(stream: TextIO, text: str) -> None:
    """Write and flush; a log that cannot be written loses its line, and the stage continues all the same."""
    with suppress(OSError):  # a full disk is told of by the artifact that has no room; this may be any thread
        stream.write(text)
        stream.flush()


def end_output() -> None:
    """Give up output that the log did not take at a process's end, or Python would make an error of it there."""
    for name in ("stdout", "stderr"):
        try:
            getattr(sys, name).flush()
        except OSError:
            setattr(sys, name, None)

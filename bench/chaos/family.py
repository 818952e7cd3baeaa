"""Processes of a trial, whatever environment and session they have: those marked, and whoever descends from those.

A verifier's processes get an environment of their own, so the mark does not reach them. They are known by their
parents, looked at while these live; who was seen once stays known.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MARK = "OAPL_CHAOS"
"""Variable of the environment that most processes of a trial inherit."""
_LOOK_S = 0.1
"""Seconds between two looks: a process that is orphaned sooner, without the mark, is missed."""


class Family:
    """Processes that carry a mark, and their descendants. Its methods may be called from several threads."""

    def __init__(self, mark: str) -> None:
        self._wanted = f"{MARK}={mark}".encode()
        self._members = dict[int, int]()
        """Start time of each process that was seen, by its id: an id alone may come again."""
        self._lock = threading.Lock()

    def living(self) -> dict[int, str]:
        """Command lines of its living processes, by process id."""
        return {process: line_of(process) for process in self._look(marks=True)}

    @contextmanager
    def watched(self, root: int) -> Iterator[None]:
        """Get to know what descends from process ``root``, as long as the context lasts."""
        over = threading.Event()
        with self._lock:
            self._members |= {root: one[1]} if (one := facts(root)) else {}
        watcher = threading.Thread(target=self._watch, args=(over,), daemon=True)
        watcher.start()
        try:
            yield
        finally:
            over.set()
            watcher.join()

    def _watch(self, over: threading.Event) -> None:
        while not over.wait(_LOOK_S):
            self._look(marks=False)

    def _look(self, marks: bool) -> list[int]:
        """Take in who descends from a member, with ``marks`` also who is marked; returns the living, no zombies."""
        with self._lock:
            found = {process: one for process in processes() if (one := facts(process))}
            known = {process for process, (_, start, _) in found.items() if self._members.get(process) == start}
            if marks:
                known |= {process for process in found.keys() - known if self._wanted in _variables(process)}
            new = set(known)
            while new := {p for p, (parent, _, _) in found.items() if parent in new and p not in known}:
                known |= new
            self._members = {process: found[process][1] for process in known}
            return sorted(process for process in known if not found[process][2])


def processes() -> Iterator[int]:
    """Ids of all processes."""
    yield from (int(name) for name in os.listdir("/proc") if name.isdigit())


def facts(process: int) -> tuple[int, int, bool] | None:
    """Parent's id, start time, and whether it is a zombie; None if it is gone."""
    try:
        fields = Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return int(fields[1]), int(fields[19]), fields[0] == b"Z"


def _variables(process: int) -> list[bytes]:
    try:
        return Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def line_of(process: int) -> str:
    """Command line; empty if the process is gone."""
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""

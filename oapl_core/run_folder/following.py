"""Tells observers what a run records while it works: the one follower of a ledger, whoever looks on.

Reads ledger.jsonl. Each observer has a thread of its own: one that waits for a network holds up no other. It has a run
of its own, whose ledger no other thread reads. What was recorded before is not told. No observer stops a run, but by a
ConfigError: what a person must mend.
"""

import contextvars
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

from oapl_core.errors import ConfigError
from oapl_core.plugins import resolve
from oapl_core.run_folder.ledger import ArtifactEntry, Entry, StageEntry
from oapl_core.run_folder.run import Run

LOOK_EVERY_S = 2.0
"""A checkpoint may start an evaluation (deployments/measuring.py): nobody should wait for the stage's end."""
_LONGEST_PAUSE_S = 60.0

Tell = Callable[[str], None]


class Observer:
    """Someone who is told what a run records, in the ledger's order; derive from it and write what is needed.

    An observer raises OSError where it cannot reach what it talks to. The run continues, and the observer is asked
    again after longer and longer pauses, beginning with the entry that it did not take. Any other error ends its part.
    """

    last_tries: int = 1
    """Number of times that the end of a whole run asks an observer that is away, with those pauses between."""

    def on_artifact(self, entry: ArtifactEntry) -> None:
        """Take in that an artifact was finished."""

    def on_stage(self, entry: StageEntry) -> None:
        """Take in that a stage's process ended, well or not."""

    def around(self, step: Any, tell: Tell) -> AbstractContextManager[Tell]:
        """Look on while a ``step`` of the plan runs in a task; what is told goes through the yielded function."""
        return nullcontext(tell)

    def on_step(self, number: int, made_from: Sequence[Mapping[str, Any]], step: Mapping[str, Any]) -> None:
        """Take in an optimiser step of round ``number``; told in the training process alone, before the ledger knows.

        ``made_from``: inputs and settings, as the ledger will name them for the epoch.
        """

    def settle(self) -> None:
        """Look at the ledger as a whole: before the first stage, after the entries of a look, and at the end."""

    def fetch(self) -> None:
        """Make the run's folder, which is not there, from what the observer has of it, if that is a run."""

    def end(self, behind: bool) -> None:
        """Leave; ``behind``: it was away to the end and misses something."""


def made(run: Run, tell: Tell, names: Sequence[str]) -> dict[str, Observer]:
    """Make the observers of those names, then those that the run's settings name.

    Each is called with the run and a function that says a line, and may give None: the run has no use for it.

    Raises:
        ConfigError: one cannot be imported, or used, or is no observer.
    """
    wanted = dict.fromkeys((*names, *run.config.observers))
    found = {name: _made(name, replace(run), tell) for name in wanted}
    return {name: observer for name, observer in found.items() if observer}


def observer(name: str, run: Any, tell: Tell) -> Observer:
    """Make the observer of that name, for whoever tells it more than the ledger; without a use for the run it is idle.

    Raises:
        ConfigError: as of ``made``.
    """
    return _made(name, run, tell) or Observer()


def catch_up(run: Run, tell: Tell) -> None:
    """Send trackers what the ledger knows and they do not have."""
    missing = observer("what trackers miss", run, tell)
    missing.settle()
    missing.end(False)


def _made(name: str, run: Any, tell: Tell) -> Observer | None:
    found = resolve("observer", name)(run, tell)
    if found is not None and not isinstance(found, Observer):
        raise ConfigError(
            f"observers: {name} makes a {type(found).__name__}, which is no observer; derive it from "
            "oapl_core.run_folder.following.Observer"
        )
    return found


@contextmanager
def follow(
    run: Run, observers: Mapping[str, Observer], tell: Tell, look_every_s: float = LOOK_EVERY_S
) -> Iterator[None]:
    """Tell ``observers`` what is recorded while the body runs, also what was before it failed.

    Raises:
        ConfigError: of an observer; before the body runs if it is known then, else after its end.
    """
    followers = [_Follower(name, run, observer, tell, look_every_s) for name, observer in observers.items()]
    for follower in followers:
        follower.look(always=True)  # in the foreground: what a person must mend is told before work starts
        follower.refuse()
    for follower in followers:
        follower.start()
    is_whole = False
    try:
        yield
        is_whole = True
    finally:
        for follower in followers:
            follower.stop(is_whole)
        for follower in followers:
            follower.join()
    for follower in followers:
        follower.refuse()


class _Follower(threading.Thread):
    """One observer with its place in the ledger."""

    def __init__(self, name: str, run: Run, observer: Observer, tell: Tell, look_every_s: float) -> None:
        super().__init__(name=f"observer {name}", daemon=True)
        self._called, self._observer, self._tell = name, observer, tell
        self._look_every_s, self._ledger = look_every_s, replace(run).ledger
        self._told = len(self._ledger.entries())
        self._context = contextvars.copy_context()  # says which flow run an event or a line belongs to
        self._tries, self._over = 1, threading.Event()
        self._failures = 0
        """Number of failures in a row."""
        self._refused: ConfigError | None = None
        self._is_out = False

    def run(self) -> None:
        """Look until the body has ended, then for the last time."""
        self._context.run(self._follow)

    def stop(self, is_whole: bool) -> None:
        """Begin the end, in which one that is away is waited for if the run ended well."""
        self._tries = self._observer.last_tries if is_whole else 1
        self._over.set()

    def refuse(self) -> None:
        """Raise what a person must mend, if there is something."""
        if self._refused:
            raise self._refused

    def look(self, always: bool = False) -> None:
        """Give the observer what is new; without news it is only asked ``always``, or if it was away."""
        if self._is_out:
            return
        try:
            news = self._ledger.entries()[self._told :]
            if news or self._failures or always:
                self._give(news)
        except ConfigError as error:
            self._refused, self._is_out = error, True
        except OSError as error:
            self._failures += 1
            if self._failures == 1:
                self._tell(f"{self._called}: {_line(error)}; the run continues, and what is missing is sent later")
        except Exception as error:  # a person's observer may raise anything
            self._is_out = True
            self._tell(f"{self._called}: {type(error).__name__}: {_line(error)}; the run continues without it")
        else:
            if self._failures:
                self._tell(f"{self._called}: caught up")
            self._failures = 0

    def _give(self, news: Sequence[Entry]) -> None:
        for entry in news:
            if isinstance(entry, ArtifactEntry):
                self._observer.on_artifact(entry)
            elif isinstance(entry, StageEntry):
                self._observer.on_stage(entry)
            self._told += 1
        self._observer.settle()

    def _follow(self) -> None:
        while not self._over.wait(self._pause_s):
            self.look()
        self._failures = min(self._failures, 1)
        for left in reversed(range(self._tries)):
            self.look(always=True)
            if not self._failures or not left or self._is_out:
                break
            threading.Event().wait(self._pause_s)  # not `_over`: that is set already, and would not wait
        try:
            self._observer.end(bool(self._failures))
        except Exception as error:  # as above
            self._tell(f"{self._called}: {type(error).__name__}: {_line(error)}")

    @property
    def _pause_s(self) -> float:
        return min(self._look_every_s * 2.0**self._failures, _LONGEST_PAUSE_S)


def _line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "")[:300]

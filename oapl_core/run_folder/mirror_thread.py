"""Keeps a run's mirror (``mirror.py``) up to date while the run works, from a thread of the orchestrating process.

A store that does not answer never stops a stage: it is tried again after longer and longer pauses, said once, and
caught up. The run's end waits for the last artifact.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from oapl_core.errors import ConfigError, StageFailed
from oapl_core.run_folder.mirror import Mirror
from oapl_core.run_folder.object_store import StoreRefused, Unreachable
from oapl_core.run_folder.run import Run

_LOOK_EVERY_S = 2.0
_LONGEST_PAUSE_S = 60.0
_LAST_TRIES = 6
_AWAY = (OSError, Unreachable, StoreRefused)
"""What may be mended while a run continues: credentials and buckets too."""


@contextmanager
def mirrored(run: Run, tell: Callable[[str], None], look_every_s: float = _LOOK_EVERY_S) -> Iterator[None]:
    """Copy what is recorded while the body runs, and what is left at its end; does nothing without ``mirror``.

    Raises:
        ConfigError: the mirror's URL cannot be used, or it holds a run with another history.
    """
    if run.config.mirror is None:
        yield
        return
    copying = _Copying(run, Mirror(run.config.mirror, run.root.name, tell), tell, look_every_s)
    copying.once()  # in the foreground: a URL that cannot be used, or another run's mirror, is told before work starts
    thread = threading.Thread(target=copying.until_told, name="mirror")
    thread.start()
    whole = False
    try:
        yield
        whole = True
    finally:
        copying.stop.set()
        thread.join()
        copying.finish(tries=_LAST_TRIES if whole else 1)
    if copying.refused:
        raise copying.refused


def catch_up(run: Run, tell: Callable[[str], None]) -> None:
    """Send what is missing in the mirror, once: before something goes here on purpose. Does nothing without ``mirror``.

    Raises:
        StageFailed: the store does not take it.
        ConfigError: as ``mirrored``.
    """
    if run.config.mirror is None:
        return
    try:
        Mirror(run.config.mirror, run.root.name, tell).update(run)
    except _AWAY as error:
        why = str(error).splitlines()[0][:200]
        raise StageFailed(
            f"mirror: {run.config.mirror} does not take what it misses ({why}); nothing was deleted; mend that and run "
            "the same command again"
        ) from None


class _Copying:
    def __init__(self, run: Run, mirror: Mirror, tell: Callable[[str], None], look_every_s: float) -> None:
        self._run, self._mirror, self._tell, self._look_every_s = run, mirror, tell, look_every_s
        self.stop = threading.Event()
        self.refused: ConfigError | None = None
        self._failures = 0
        """In a row."""

    def once(self) -> bool:
        """Copy what is new; whether the store answered."""
        try:
            self._mirror.update(self._run)
        except _AWAY as error:
            self._failures += 1
            if self._failures == 1:
                what = f"mirror: {self._run.config.mirror} does not take copies ({str(error).splitlines()[0][:200]})"
                self._tell(f"{what}; the run continues, and what is missing there is sent when it does")
            return False
        if self._failures:
            self._tell("mirror: caught up")
        self._failures = 0
        return True

    @property
    def _pause_s(self) -> float:
        return min(self._look_every_s * 2.0**self._failures, _LONGEST_PAUSE_S)

    def until_told(self) -> None:
        while not self.stop.wait(self._pause_s) and self.refused is None:
            self._guarded()

    def _guarded(self) -> bool:
        """``once`` for the thread: another run's mirror is an error for whoever waits."""
        try:
            return self.once()
        except ConfigError as error:
            self.refused = error
            return True

    def finish(self, tries: int) -> None:
        """Send what is left; what cannot be sent is said, and sent by the next run of the same command."""
        self._failures = min(self._failures, 1)
        for _ in range(tries):
            if self.refused or self._guarded():
                return
            # Not `self.stop`: that is set already, and would not wait.
            threading.Event().wait(self._pause_s if tries > 1 else 0)
        self._tell(
            f"mirror: {self._run.config.mirror} does not hold the whole run yet; run the same command again to send "
            "the rest, nothing else is redone"
        )

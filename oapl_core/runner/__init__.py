"""Where the process of a step runs: one contract for this machine, a work pool, a cluster, or a runner of one's own.

A runner is found by name (``plugins``, kind "runner"; setting `fleet.STAGE.runner`). It places and starts processes,
and may start them again; it knows nothing of parts. A stage that has parts is done by several processes at once
(``runner/crew.py``), so a helper may come, die, or be missing at any time. Reads and writes nothing.
"""

import contextvars
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from oapl_core.errors import OaplError
from oapl_core.planning.plan import Step
from oapl_core.plugins import resolve
from oapl_core.run_folder.run import Run

_POLL_S = 0.5

Tell = Callable[[str], None]


class Started(Protocol):
    """A process that a runner has started. One thread at a time asks it, not always the one that started it."""

    def wait(self, patience_s: float | None = None) -> bool:
        """Wait for its end and hand over the progress that it makes meanwhile. Not called again once it has ended.

        Args:
            patience_s: seconds after which to return all the same; 0: look once; unset: wait as long as it takes. Only
                what is waited counts towards the stage's time limit.

        Returns:
            Whether it has ended well.

        Raises:
            OaplError: the stage's own one-line error. StageFailed (but not Diverged) where the same may work again: a
                machine that died, a crash; a helper is then started again.
        """
        ...

    def cancel(self) -> None:
        """End it with all its descendants, or have it ended; after its end, or a second time, nothing happens."""
        ...


class Runner(Protocol):
    """A place where steps run. What the name leads to, a class as a rule, is called with `fleet.STAGE.at`.

    `oapl run` and the flows call ``start`` once for a step and once for each helper, from the process that holds the
    run folder. The same step is started again after a failure, and again when the run is: a stage does what is missing.
    """

    def start(self, run: Run, step: Step, tell: Tell) -> Started:
        """Start the process of ``step`` and return without waiting for it.

        On another machine that is ``python -m tasks.elsewhere JSON`` with the step as its ``Order``. It ends by itself
        when the holder of the run folder does, so that nothing is left behind where nobody can cancel.

        Args:
            run: its folder, held by this process.
            step: what to do.
            tell: gets lines for people: progress, and what it waits for.

        Raises:
            ConfigError: a setting, or the machine's set-up, makes it impossible.
            StageFailed: it could not be started now.
        """
        ...


class Helpers(Protocol):
    """Processes that help with a step that was started."""

    def report(self) -> None:
        """Look after them, and say what happened to them."""
        ...

    def wait(self) -> None:
        """Give them a moment to end by themselves, as nothing is left to do."""
        ...


class _Work:
    """A step that was started where its settings say, and its helpers."""

    def __init__(self, first: Started, helpers: Helpers | None = None) -> None:
        self._first, self._helpers = first, helpers
        self._is_over = False
        self._error: OaplError | None = None

    def look(self, patience_s: float) -> bool:
        """Look after the step and its helpers; whether the step has ended, well or not."""
        if not self._is_over:
            try:
                self._is_over = self._first.wait(patience_s)
            except OaplError as error:
                self._is_over, self._error = True, error
        if self._helpers:
            self._helpers.report()
        return self._is_over

    def look_until(self, over: threading.Event) -> None:
        """Look again and again, in a thread."""
        while not over.wait(_POLL_S):
            self.look(0)

    def finish(self) -> None:
        """Wait for the end of the step, then a moment for that of its helpers.

        Raises:
            OaplError: the step's.
        """
        while not self.look(_POLL_S):
            pass
        if self._error:
            raise self._error
        if self._helpers:
            self._helpers.wait()


@contextmanager
def _started(run: Run, step: Step, tell: Tell) -> Iterator[_Work]:
    if run.config.machines(step.verb):
        with resolve("setting", "fleet")(run, step, tell) as (first, helpers):
            yield _Work(first, helpers)
        return
    # without other machines nobody helps: further engines of this one are started by the stage itself
    alone: Started = resolve("runner", "here")(None).start(run, step, tell)
    try:
        yield _Work(alone)
    finally:
        alone.cancel()


def do(run: Run, step: Step, tell: Tell) -> None:
    """Do ``step`` where its settings say, with its helpers; our own end, however it comes, ends them all.

    Raises:
        OaplError: the stage's own one-line error.
    """
    with _started(run, step, tell) as work:
        work.finish()


@contextmanager
def beside(run: Run, step: Step, tell: Tell) -> Iterator[None]:
    """Do ``step`` during the body of the context: the body's end waits for it, the body's failure ends it.

    That it failed is said, but not raised: the same work follows as a step.

    Raises:
        OaplError: it could not be started.
    """
    with _started(run, step, tell) as work:
        over, context = threading.Event(), contextvars.copy_context()
        # in our context: what a runner starts again belongs to the flow run that is ours
        thread = threading.Thread(target=context.run, args=(work.look_until, over), name=step.label, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
        try:
            work.finish()
        except OaplError as error:
            tell(str(error))

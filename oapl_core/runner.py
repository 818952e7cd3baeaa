"""Where the process of a step runs: one contract for this machine, a work pool, a cluster, or a runner of one's own.

A runner is found by name (``plugins``, kind "runner"; setting `fleet.STAGE.runner`). It places and starts processes,
and may start them again; it knows nothing of parts. A stage that has parts is done by several processes at once. Each
is the same verb once more, and claims parts that nobody has. So a helper may come, die, or be missing at any time, and
others take its part over. Reads and writes nothing.
"""

import contextvars
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from oapl_core.errors import Diverged, OaplError, StageFailed
from oapl_core.planning.plan import Step, helping_steps
from oapl_core.plugins import resolve
from oapl_core.run_folder.lock import owner
from oapl_core.run_folder.run import Run
from oapl_core.settings.operation.secrets import below

REPLACED = 2
"""How often a helper that failed is started again."""
_END_S = 10.0  # in which all helpers together may end by themselves
_LOOK_EVERY_S = 5.0
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

        On another machine that is ``python -m tasks.elsewhere JSON`` with the ``Order`` of the step. It ends by itself
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


@dataclass(frozen=True)
class Order:
    """A step for another machine, done on behalf of whoever holds the run folder; JSON can say all of it."""

    run_dir: str
    step: Step
    holder: str
    """Token in run.lock of the process that holds the folder."""
    mirror: str | None = None
    """URL of the run's copy, where that machine does not see the folder."""

    @classmethod
    def of(cls, run: Run, step: Step) -> Self:
        """Make the order that this process, which holds the folder of ``run``, gives."""
        holder = owner(run.root)
        assert holder, "whoever starts a stage holds the run folder"
        is_seen = run.config.is_elsewhere(step.verb)
        mirror = None if is_seen else below(run.config.mirror or "", run.root.name)
        return cls(str(run.root.resolve()), step, holder.token, mirror)


class Crew:
    """Processes that help with the same work. As a context manager it starts them, and ends those that are left."""

    def __init__(
        self, start: Callable[[int], Started], names: Mapping[int, str], tell: Tell, look_every_s: float = _LOOK_EVERY_S
    ) -> None:
        """``start`` starts the helper of a number of ``names``, which are what people call them."""
        self._start, self._names, self._tell, self._look_every_s = start, names, tell, look_every_s
        self._living: dict[int, Started] = {}
        self._replaced = Counter[int]()
        self._looked = time.monotonic()

    def __enter__(self) -> Self:
        try:
            for number in self._names:
                self._living[number] = self._start(number)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, _e: BaseException | None, _t: TracebackType | None) -> None:
        self._end()

    def report(self) -> None:
        """Say once of each helper that failed that it did, and start it again unless it would fail again."""
        if time.monotonic() - self._looked < self._look_every_s:
            return
        self._looked = time.monotonic()
        for number, process in list(self._living.items()):
            try:
                if process.wait(0):
                    del self._living[number]
            except OaplError as error:
                del self._living[number]
                self._tell(f"{self._names[number]}: {error}; the others do its parts{self._again(number, error)}")

    def _again(self, number: int, error: OaplError) -> str:
        """Start it again, unless a person must mend something first; what to say of it."""
        is_final = isinstance(error, Diverged) or not isinstance(error, StageFailed)
        if is_final or self._replaced[number] == REPLACED:
            return ""
        self._replaced[number] += 1
        try:
            self._living[number] = self._start(number)
        except OaplError as refused:
            return f", and it could not be started again ({refused})"
        return f", and it is started again ({self._replaced[number]} of {REPLACED})"

    def wait(self) -> None:
        """Give them a moment to end by themselves when nothing is left to do; those still starting are ended."""
        deadline = time.monotonic() + _END_S
        for number, process in list(self._living.items()):
            try:
                if not process.wait(max(0.01, deadline - time.monotonic())):
                    return  # leaving the context ends this one and all after it
            except OaplError:  # what it was to do is done
                pass
            del self._living[number]

    def _end(self) -> None:
        for process in self._living.values():
            process.cancel()
        self._living.clear()


class _Work:
    """A step that was started where its settings say, and its helpers."""

    def __init__(self, first: Started, crew: Crew) -> None:
        self._first, self._crew = first, crew
        self._is_over = False
        self._error: OaplError | None = None

    def look(self, patience_s: float) -> bool:
        """Look after the step and its helpers; whether the step has ended, well or not."""
        if not self._is_over:
            try:
                self._is_over = self._first.wait(patience_s)
            except OaplError as error:
                self._is_over, self._error = True, error
        self._crew.report()
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
        self._crew.wait()


@contextmanager
def _started(run: Run, step: Step, tell: Tell) -> Iterator[_Work]:
    machines, here = run.config.fleet.machines(step.verb), resolve("runner", "here")(None)
    elsewhere: Runner = resolve("runner", machines.runner)(machines.at) if machines and machines.has_runner else here
    helpers = helping_steps(step, machines.shares) if machines and machines.has_runner else ()
    first = (elsewhere if run.config.is_elsewhere(step.verb) else here).start(run, step, tell)
    try:
        # progress is that of the first: bars of several would take turns
        with Crew(
            lambda number: elsewhere.start(run, helpers[number], lambda _line: None),
            {number: helper.title for number, helper in enumerate(helpers)},
            tell,
        ) as crew:
            yield _Work(first, crew)
    finally:
        first.cancel()


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

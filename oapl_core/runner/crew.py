"""Processes that help with a step, on other machines (`[fleet]`) or with an engine more on this (`engine.replicas`).

Each is the step's verb once more, and claims parts that nobody has. One that dies is started again, twice at most; the
others take its part over meanwhile. Where a stage has other machines, ``do`` finds ``on_machines`` by name. Reads and
writes nothing.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import TracebackType
from typing import Self

from oapl_core.errors import Diverged, OaplError, StageFailed
from oapl_core.planning.plan import Step
from oapl_core.plugins import resolve
from oapl_core.run_folder.run import Run
from oapl_core.runner import Runner, Started, Tell

REPLACED = 2
"""How often a helper that failed is started again."""
_END_S = 10.0  # in which all helpers together may end by themselves
_LOOK_EVERY_S = 5.0


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


def helping_steps(step: Step, shares: int) -> tuple[Step, ...]:
    """List all shares of ``step`` but the first, which is the step: the same verb once more, on another machine."""
    return tuple(
        replace(step, title=f"{step.title}, share {share} of {shares}", options=(*step.options, "--share", str(share)))
        for share in range(2, shares + 1)
    )


@contextmanager
def on_machines(run: Run, step: Step, tell: Tell) -> Iterator[tuple[Started, Crew]]:
    """Start ``step`` where `fleet.STAGE` says, and its helpers; leaving the context ends those that are left.

    Raises:
        OaplError: one could not be started.
    """
    machines, here = run.config.machines(step.verb), resolve("runner", "here")(None)
    assert machines, "without other machines there is nobody to help"
    elsewhere: Runner = resolve("runner", machines.runner)(machines.at) if machines.has_runner else here
    helpers = helping_steps(step, machines.shares) if machines.has_runner else ()
    first = (elsewhere if run.config.is_elsewhere(step.verb) else here).start(run, step, tell)
    try:
        # progress is that of the first: bars of several would take turns
        with Crew(
            lambda number: elsewhere.start(run, helpers[number], lambda _line: None),
            {number: helper.title for number, helper in enumerate(helpers)},
            tell,
        ) as crew:
            yield first, crew
    finally:
        first.cancel()

"""Ends a step when a rule of `[stop]` says so: an observer that flows find by its name.

It looks before a step starts and, while one runs, at each line of progress, at most every few seconds. A step that is
ended keeps its finished parts, and a trainer saves its state: the same command continues there.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from oapl_core.errors import Stopped
from oapl_core.launch import gpus_of
from oapl_core.planning.stages import REPORT
from oapl_core.run_folder.following import Observer, Tell
from oapl_core.run_folder.run import Run
from oapl_extras.stop.costs import Costs, costs
from oapl_extras.stop.rules import reasons, refuse_idle

LOOK_EVERY_S = 10.0
"""Pause between two looks at the rules: a look reads the ledger and the sizes of all files."""


class Stopping(Observer):
    """Looks at the rules around each step."""

    def __init__(self, run: Run, tell: Tell, look_every_s: float = LOOK_EVERY_S) -> None:
        """Check that each rule can end the run.

        Raises:
            ConfigError: one never can.
        """
        refuse_idle(run)
        self._run, self._look_every_s = run, look_every_s

    @contextmanager
    def around(self, step: Any, tell: Tell) -> Iterator[Tell]:
        """Look before ``step``, and at its lines of progress; not at the report.

        Raises:
            Stopped: a rule ends the run.
        """
        if step.verb == REPORT.verb:  # it has the numbers for which a rule ends the run
            yield tell
            return
        # before a process starts: what an earlier start has used up is not used up a second time
        self._look(costs(self._run))
        gpus, began = gpus_of(self._run, step.verb), time.monotonic()
        looked = began

        def watched(line: str) -> None:
            nonlocal looked
            # the person reads the last line before the reason that follows it
            tell(line)
            now = time.monotonic()
            if now - looked >= self._look_every_s:
                looked = now
                self._look(_with(costs(self._run), step.verb, now - began, gpus))

        yield watched

    def _look(self, cost: Costs) -> None:
        if reason := next(reasons(self._run, cost), None):
            raise Stopped(f"as {reason}; raise the limit first")


def _with(cost: Costs, verb: str, seconds: float, gpus: int) -> Costs:
    """Add the process in hand, which the ledger will have at its end."""
    package = verb.partition(".")[0]
    gpu_s = {**cost.gpu_s, package: cost.gpu_s.get(package, 0.0) + seconds * gpus} if gpus else cost.gpu_s
    return replace(cost, wall_s=cost.wall_s + seconds, gpu_s=gpu_s)


def stopping(run: Run, tell: Tell) -> Stopping | None:
    """Make the observer, where the run has a rule."""
    return Stopping(run, tell) if run.config.stop.is_on else None

"""Being asked to stop: SIGTERM, SIGINT and SIGUSR1 end a round after the step in hand, with its state saved.

A scheduler's warning is SIGUSR1 in many places (Slurm: ``--signal=USR1@300``). The process that launched ranks hands a
request on as a file, which reaches the ranks of every machine that sees the run folder. Ranks agree in ``Saving``,
because all of them must stop after the same step.
"""

import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from oapl_core.errors import Interrupted
from oapl_core.training.state import Reached, save_state

if TYPE_CHECKING:
    from oapl_core.settings.training import TrainingConfig
    from oapl_core.training.engine import TrainingEngine

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
INTERRUPTED = "interrupted after step"
"""How the error line of a rank begins that was asked to stop."""


@contextmanager
def listening(answer: Callable[[], None]) -> Iterator[None]:
    """Inside the context a signal that asks to stop calls ``answer`` and does nothing else."""

    def handler(_number: int, _frame: FrameType | None) -> None:
        answer()

    before = {number: signal.signal(number, handler) for number in SIGNALS}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


class StopRequest:
    """Whether this rank was asked to stop: by a signal that it got, or by the launcher's file."""

    def __init__(self, file: Path) -> None:
        """``file`` need not exist."""
        self._file, self._signalled = file, False

    def ask(self) -> None:
        """What a signal does in a rank."""
        self._signalled = True

    @property
    def asked(self) -> bool:
        """Whether to stop at the next chance."""
        return self._signalled or self._file.exists()


class Saving:
    """After each step and epoch: is the state to be saved, and is the round to stop?"""

    def __init__(
        self,
        engine: "TrainingEngine",
        states: Path,
        owner: Mapping[str, Any],
        training: "TrainingConfig",
        request: StopRequest,
    ) -> None:
        """States go to ``states`` and belong to ``owner``."""
        self._engine, self._states, self._owner, self._request = engine, states, owner, request
        self._every_steps = training.save_steps
        self._every_s = None if training.save_minutes is None else 60 * training.save_minutes
        self._steps, self._last_s = 0, time.monotonic()

    def after_step(self, reached: Reached) -> None:
        """Every rank calls it between two steps.

        Raises:
            Interrupted: someone asked to stop; the state is saved.
        """
        self._steps += 1
        by_steps = self._every_steps is not None and self._steps >= self._every_steps
        by_time = self._every_s is not None and time.monotonic() - self._last_s >= self._every_s
        due, stop = self._agreed(by_steps or by_time, self._request.asked)
        if due or stop:
            self._save(reached)
        if stop:
            self._stop(reached)

    def after_epoch(self, reached: Reached) -> None:
        """Save the beginning of an epoch; every rank calls it.

        Raises:
            Interrupted: someone asked to stop; the state is saved.
        """
        self._save(reached)
        if self._agreed(False, self._request.asked)[1]:
            self._stop(reached)

    def _agreed(self, *wishes: bool) -> list[bool]:
        """What any rank wishes."""
        import torch

        flags = torch.tensor([float(wish) for wish in wishes], device=self._engine.device)
        return [flag > 0 for flag in self._engine.largest(flags).tolist()]

    def _save(self, reached: Reached) -> None:
        save_state(self._engine, self._states, reached, self._owner)
        self._steps, self._last_s = 0, time.monotonic()

    def _stop(self, reached: Reached) -> None:
        raise Interrupted(
            f"{INTERRUPTED} {reached.steps} of epoch {reached.epoch}; its state is saved, run the same "
            "command again to continue"
        )

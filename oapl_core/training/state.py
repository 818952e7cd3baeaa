"""The state of an unfinished round: when it is saved, how, and how a round is resumed from it.

Scratch beside the checkpoints, no artifact: weights, optimiser, random numbers of each rank, and how far the round is
with the metrics of its unfinished epoch (the learning rate and the order of the data follow from these). A state is
complete or absent: it is written under a temporary name, fsynced and renamed, with a note of what it belongs to
(inputs, settings, ranks). Then the one before it is deleted, so that two lie on the disk at most, and one while no
state is being written.
"""

import json
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from oapl_core.errors import Interrupted
from oapl_core.files import fsync
from oapl_core.progress import say
from oapl_core.training.continuation import gradient_sums, take_over
from oapl_core.training.interruption import INTERRUPTED, StopRequest

if TYPE_CHECKING:
    from oapl_core.training.engine import TrainingEngine
    from oapl_core.training.job import Job
    from oapl_core.training.metrics import Metrics

_NOTE = "belongs_to.json"
_REACHED = "reached.json"
MOST_SAVING = 0.05
"""Share of the time that saving states by the clock may take."""


@dataclass(frozen=True)
class Reached:
    """How far a round is: these steps of ``epoch`` (counted from 1) are done, and every epoch before it."""

    epoch: int = 1
    rows: "list[Metrics]" = field(default_factory=list)
    """Metrics of the epoch's finished steps."""

    @property
    def steps(self) -> int:
        """Finished steps of the epoch."""
        return len(self.rows)


def resume(job: "Job", engine: "TrainingEngine") -> Reached:
    """Load what the round continues from, and say how far that is; every rank calls it.

    That is the newest state of this round whose earlier epochs are all exported; else the optimiser of the round
    before, if it is continued; else nothing, and the weights stay as they were loaded.
    """
    # the first looks for all: what others see of a shared disk may be a minute old
    newest = engine.of_first(lambda: _newest(job, _owner(job, engine)))
    if newest:
        engine.load(_path(job.states, newest))
        _load_random_numbers(_random_file(_path(job.states, newest), engine.rank))
        return newest
    if job.run.config.continues_optimizer(job.round_number):
        take_over(job, engine)
    return Reached()


def _newest(job: "Job", owner: str) -> Reached | None:
    found = max(_states(job.states, owner), key=lambda reached: (reached.epoch, reached.steps), default=None)
    return found if found and all(job.is_done(epoch) for epoch in range(1, found.epoch)) else None


class Saving:
    """After each step and epoch: is the state to be saved, and is the round to stop?"""

    def __init__(self, engine: "TrainingEngine", job: "Job", request: StopRequest) -> None:
        """``request`` is this rank's; what any rank wishes, all do."""
        self._engine, self._job, self._request = engine, job, request
        training = job.training
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
        """What any rank wishes: clocks differ, and a signal may reach one rank only, but all must save one step."""
        import torch

        flags = torch.tensor([float(wish) for wish in wishes], device=self._engine.device)
        return [flag > 0 for flag in self._engine.largest(flags).tolist()]

    def _save(self, reached: Reached) -> None:
        start = time.monotonic()
        _save_state(self._engine, self._job, reached)
        self._steps, self._last_s = 0, time.monotonic()
        self._every_s = self._bounded(self._last_s - start)

    def _bounded(self, took_s: float) -> float | None:
        """Seconds between two states: the setting's, unless the disk is so slow that this would be mostly saving."""
        # From this disk, as it is now: estimates of a shared one are off by what others write.
        least_s = took_s * (1 / MOST_SAVING - 1)
        if self._every_s is None or self._every_s >= least_s:
            return self._every_s
        if self._engine.rank == 0:
            say(
                f"a state takes {took_s:.0f} s to save, so one is saved every {least_s / 60:.0f} minutes instead of "
                f"every {self._every_s / 60:.0f}: at most {MOST_SAVING:.0%} of the time (training.save_minutes)"
            )
        return least_s

    def _stop(self, reached: Reached) -> None:
        raise Interrupted(
            f"{INTERRUPTED} {reached.steps} of epoch {reached.epoch}; its state is saved, run the same "
            "command again to continue"
        )


def delete_states(folder: Path) -> None:
    """Delete every state: the round is finished."""
    if folder.exists():
        for state in folder.iterdir():
            _discard(state)
        folder.rmdir()


def _save_state(engine: "TrainingEngine", job: "Job", reached: Reached) -> None:
    """Write the state and delete the older ones; every rank calls it."""
    folder, target = job.states, _path(job.states, reached)
    temporary = folder / ".tmp-state"
    if engine.rank == 0:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
    engine.wait()  # no rank may write into a folder that the first one is still deleting
    engine.save(temporary)
    _save_random_numbers(_random_file(temporary, engine.rank))
    engine.wait()  # the note makes a state whole, so every rank's part must be there before it
    if engine.rank == 0:
        (temporary / _REACHED).write_text(json.dumps(asdict(reached)))
        (temporary / _NOTE).write_text(_owner(job, engine))
        fsync(temporary)
        _discard(target)
        temporary.rename(target)
        fsync(folder, below=False)
        for older in folder.iterdir():
            if older != target:
                _discard(older)
    engine.wait()  # a step may end in a kill: none begins before the state of the one before it is safe


def _owner(job: "Job", engine: "TrainingEngine") -> str:
    """What a state must belong to: ranks too, because each keeps its share of the optimiser."""
    owner = {"inputs": dict(job.inputs), "settings": dict(job.settings), "ranks": engine.ranks}
    # a state of before gradients were summed in float32 is another optimiser's: the unfinished epoch begins anew
    owner |= gradient_sums(job.training)
    return json.dumps(owner, sort_keys=True, default=str)


def _states(folder: Path, owner: str) -> Iterator[Reached]:
    for note in folder.glob(f"epoch_*/{_NOTE}"):
        if note.read_text() == owner:
            yield Reached(**json.loads((note.parent / _REACHED).read_text()))


def _save_random_numbers(path: Path) -> None:
    """Torch's generators; everything else that is random here is derived from the run's seed."""
    import torch

    cuda = torch.cuda.get_rng_state() if torch.cuda.is_available() else None
    torch.save({"cpu": torch.get_rng_state(), "cuda": cuda}, path)
    fsync(path)


def _load_random_numbers(path: Path) -> None:
    import torch

    saved = torch.load(path, weights_only=True)
    torch.set_rng_state(saved["cpu"])
    if saved["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(saved["cuda"])


def _random_file(state: Path, rank: int) -> Path:
    return state / f"random_rank_{rank:05d}.pt"


def _discard(state: Path) -> None:
    # the note first: a half-deleted state must not look like a whole one
    (state / _NOTE).unlink(missing_ok=True)
    shutil.rmtree(state, ignore_errors=True)


def _path(folder: Path, reached: Reached) -> Path:
    return folder / f"epoch_{reached.epoch:02d}_step_{reached.steps:06d}"

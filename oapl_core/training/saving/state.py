"""The state of an unfinished round: when it is saved, how, and how a round is resumed from it.

A state is scratch beside the checkpoints, no artifact. It holds weights, optimiser, random numbers of each rank, the
round's progress, and the metrics of its unfinished epoch. Learning rate and order of the data follow from these. A
state is complete or absent: it is written under a temporary name, fsynced and renamed. A note names its owner (inputs,
settings, ranks) and the SHA-256 of every file. Then the one before it is deleted, so that two lie on the disk at most,
and one while no state is being written. A state that does not hold these bytes any more is put aside.
"""

import json
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from oapl_core.errors import Interrupted
from oapl_core.files import fsync, hashes_of
from oapl_core.progress import say
from oapl_core.training.interruption import INTERRUPTED, StopRequest
from oapl_core.training.saving.continuation import take_over

if TYPE_CHECKING:
    from oapl_core.training.engine import TrainingEngine
    from oapl_core.training.job import Job
    from oapl_core.training.metrics import Metrics

_NOTE = "belongs_to.json"
_REACHED = "reached.json"
_ASIDE = ".damaged-"
"""Beginning of the name of a state that cannot be used; it goes when the next one is saved."""
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
    """Load the state that the round continues from, and return how far it is; every rank calls it.

    That is the newest whole state of this round whose earlier epochs are all exported. Without one it is the optimiser
    of the round before, if that is continued. Otherwise nothing is loaded, and the weights stay as they are. An
    exported epoch alone is never trained on: without its optimiser the weights would come out otherwise. A trained
    round has reached its end.
    """
    # the first looks for all: what others see of a shared disk may be a minute old
    if engine.of_first(lambda: job.is_trained):
        return Reached(job.epochs + 1)
    while newest := engine.of_first(lambda: _newest(job, _owner(job, engine))):
        name, reached = newest
        if (writer := _writer_of_damage(engine, job.states / name)) is None:
            engine.load(job.states / name)
            _load_random_numbers(_random_file(job.states / name, engine.rank))
            return reached
        if engine.rank == 0:
            _put_aside(job.states / name, f"files of rank {writer} do not hold the bytes that it wrote")
        engine.wait()
    if job.run.config.continues_optimizer(job.round_number):
        take_over(job, engine)
    return Reached()


def _newest(job: "Job", owner: str) -> tuple[str, Reached] | None:
    """Return the folder name and place of the state to continue from; a state that cannot be used is said."""
    newest = max(_states(job.states, owner), key=lambda state: (state[1].epoch, state[1].steps), default=None)
    return newest if newest and all(job.is_done(epoch) for epoch in range(1, newest[1].epoch)) else None


def _writer_of_damage(engine: "TrainingEngine", state: Path) -> int | None:
    """Return the last rank whose files are not what it wrote, the same on every rank; None if the state is whole."""
    import torch

    is_whole = _is_whole(state, engine.rank)
    worst = engine.largest(torch.tensor([0.0 if is_whole else engine.rank + 1.0], device=engine.device))
    return int(worst.item()) - 1 if worst.item() else None


def _is_whole(state: Path, rank: int) -> bool:
    """Return whether the files that ``rank`` wrote are there and hold the bytes that it wrote."""
    try:
        sums: dict[str, str] = json.loads(_sums_file(state, rank).read_text(encoding="utf-8"))
        return bool(sums) and hashes_of([state / name for name in sums]) == list(sums.values())
    except (FileNotFoundError, ValueError, TypeError, AttributeError):
        return False


def _put_aside(state: Path, why: str) -> None:
    say(f"the saved state {state.name} cannot be used: {why}; training goes back to what was saved before it")
    aside = state.with_name(_ASIDE + state.name)
    _discard(aside)
    state.rename(aside)


class Saving:
    """Decision after each step and epoch: whether to save the state, and whether to stop the round."""

    def __init__(self, engine: "TrainingEngine", job: "Job", request: StopRequest) -> None:
        """Keep the request to stop of this rank; what any rank wishes, all do."""
        self._engine, self._job, self._request = engine, job, request
        training = job.training
        self._every_steps = training.save_steps
        self._every_s = None if training.save_minutes is None else 60 * training.save_minutes
        self._steps, self._last_s = 0, time.monotonic()

    def after_step(self, reached: Reached) -> None:
        """Save a state, or stop, if it is time; every rank calls it between two steps.

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
        """Join the wishes of all ranks: clocks differ, and a signal may reach one rank only, but all must save one
        step.
        """
        import torch

        flags = torch.tensor([float(wish) for wish in wishes], device=self._engine.device)
        return [flag > 0 for flag in self._engine.largest(flags).tolist()]

    def _save(self, reached: Reached) -> None:
        start = time.monotonic()
        _save_state(self._engine, self._job, reached)
        self._steps, self._last_s = 0, time.monotonic()
        self._every_s = self._bounded(self._last_s - start)

    def _bounded(self, took_s: float) -> float | None:
        """Return the seconds between two states: the setting's, unless the disk is so slow that this would be mostly
        saving.
        """
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
    if engine.rank == 0:
        (temporary / _REACHED).write_text(json.dumps(asdict(reached)))
    engine.wait()  # files of no rank were written by a rank that may not be the first
    _save_sums(temporary, engine.rank, engine.ranks)
    engine.wait()  # the note makes a state whole, so every rank's part must be there before it
    if engine.rank == 0:
        (temporary / _NOTE).write_text(_owner(job, engine))
        fsync(temporary)
        _discard(target)
        temporary.rename(target)
        fsync(folder, below=False)
        for older in folder.iterdir():
            if older != target:
                _discard(older)
    engine.wait()  # a step may end in a kill: none begins before the state of the one before it is safe


def _save_sums(state: Path, rank: int, ranks: int) -> None:
    """Write the SHA-256 of each file that ``rank`` answers for: its own, of the first rank also what is nobody's."""
    # each rank hashes what it wrote: the others may not see it yet, and one alone would take as many times as long
    own = _of_rank(state, rank)
    if rank == 0:
        others = set[Path]().union(*(_of_rank(state, other) for other in range(1, ranks)))
        own = {path for path in state.rglob("*") if path.is_file() and path.name[:5] != "sums_"} - others
    files = sorted(own)
    sums = dict(zip((path.relative_to(state).as_posix() for path in files), hashes_of(files), strict=True))
    _sums_file(state, rank).write_text(json.dumps(sums), encoding="utf-8")
    fsync(_sums_file(state, rank))


def _of_rank(state: Path, rank: int) -> set[Path]:
    # DeepSpeed's names of a rank's share of the optimiser and, with ZeRO 3, of the weights
    return {*state.rglob(f"*pp_rank_{rank}_*"), _random_file(state, rank)}


def _sums_file(state: Path, rank: int) -> Path:
    return state / f"sums_rank_{rank:05d}.json"


def _owner(job: "Job", engine: "TrainingEngine") -> str:
    """Describe the owner of a state: ranks too, because each keeps its share of the optimiser."""
    owner = {"inputs": dict(job.inputs), "settings": dict(job.settings), "ranks": engine.ranks}
    return json.dumps(owner, sort_keys=True, default=str)


def _states(folder: Path, owner: str) -> Iterator[tuple[str, Reached]]:
    for note in sorted(folder.glob(f"epoch_*/{_NOTE}")):
        state = note.parent
        try:
            if note.read_text(encoding="utf-8") == owner:
                yield state.name, Reached(**json.loads((state / _REACHED).read_text(encoding="utf-8")))
            else:
                _put_aside(state, "it belongs to other inputs, settings or ranks")
        except (FileNotFoundError, ValueError, TypeError) as error:
            _put_aside(state, f"its notes are not readable ({str(error).splitlines()[0][:80]})")


def _save_random_numbers(path: Path) -> None:
    """Save torch's generators; everything else that is random here is derived from the run's seed."""
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

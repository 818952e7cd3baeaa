"""The trainer's own state after a step, from which a killed round goes on: scratch beside the checkpoints, no artifact.

Weights, optimiser, random numbers of each rank, and how far the round is with the metrics of its unfinished epoch (the
learning rate and the order of the data follow from these). A state is complete or absent: it is written under a
temporary name, fsynced and renamed, with a note of what it belongs to (inputs, settings, ranks). Then the one before it
is deleted, so that two lie on the disk at most, and one while no state is being written.
"""

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oapl_core.files import fsync

if TYPE_CHECKING:
    from oapl_core.training.engine import TrainingEngine
    from oapl_core.training.metrics import Metrics

_NOTE = "belongs_to.json"
_REACHED = "reached.json"


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


def save_state(engine: "TrainingEngine", folder: Path, reached: Reached, owner: Mapping[str, Any]) -> None:
    """Write the state and delete the older ones; every rank calls it."""
    temporary, target = folder / ".tmp-state", _path(folder, reached)
    if engine.rank == 0:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
    engine.wait()
    engine.save(temporary)
    _save_random_numbers(_random_file(temporary, engine.rank))
    engine.wait()
    if engine.rank == 0:
        (temporary / _REACHED).write_text(json.dumps(asdict(reached)))
        (temporary / _NOTE).write_text(_text(owner))
        fsync(temporary)
        _discard(target)
        temporary.rename(target)
        fsync(folder, below=False)
        for old in folder.iterdir():
            if old != target:
                _discard(old)
    engine.wait()


def find_state(folder: Path, owner: Mapping[str, Any]) -> Reached | None:
    """How far the newest state is that belongs to ``owner``; None if there is none."""
    return max(_states(folder, _text(owner)), key=lambda reached: (reached.epoch, reached.steps), default=None)


def load_state(engine: "TrainingEngine", folder: Path, reached: Reached) -> None:
    """Continue as after ``reached``; every rank calls it."""
    engine.load(_path(folder, reached))
    _load_random_numbers(_random_file(_path(folder, reached), engine.rank))


def delete_states(folder: Path) -> None:
    """Forget every state: the round is finished."""
    if folder.exists():
        for state in folder.iterdir():
            _discard(state)
        folder.rmdir()


def _states(folder: Path, wanted: str) -> Iterator[Reached]:
    for note in folder.glob(f"epoch_*/{_NOTE}"):
        if note.read_text() == wanted:
            yield Reached(**json.loads((note.parent / _REACHED).read_text()))


def _text(owner: Mapping[str, Any]) -> str:
    return json.dumps(owner, sort_keys=True, default=str)


def _save_random_numbers(path: Path) -> None:
    """Torch's generators; everything else that is random here is derived from the run's seed."""
    import torch

    cuda = torch.cuda.get_rng_state() if torch.cuda.is_available() else None
    torch.save({"cpu": torch.get_rng_state(), "cuda": cuda}, path)


def _load_random_numbers(path: Path) -> None:
    import torch

    saved = torch.load(path, weights_only=True)
    torch.set_rng_state(saved["cpu"])
    if saved["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(saved["cuda"])


def _random_file(state: Path, rank: int) -> Path:
    return state / f"random_rank_{rank:05d}.pt"


def _discard(state: Path) -> None:
    """Note first: a half-deleted state must not look like a whole one."""
    (state / _NOTE).unlink(missing_ok=True)
    shutil.rmtree(state, ignore_errors=True)


def _path(folder: Path, reached: Reached) -> Path:
    return folder / f"epoch_{reached.epoch:02d}_step_{reached.steps:06d}"

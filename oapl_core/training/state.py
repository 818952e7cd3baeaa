"""DeepSpeed's own state after an epoch, from which a killed round goes on: scratch beside the checkpoints, no artifact.

A state is complete or absent: it is written under a temporary name, fsynced and renamed, with a note of what it belongs
to (inputs, settings). It is deleted as soon as a later epoch has one, and when the round is finished.
"""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oapl_core.training.engine import Engine

_NOTE = "belongs_to.json"


def save_state(engine: "Engine", folder: Path, epoch: int, owner: Mapping[str, Any]) -> None:
    """Write the state after ``epoch`` and delete the older ones; every rank calls it."""
    temporary = folder / ".tmp-state"
    if engine.rank == 0:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
    engine.wait()
    engine.save(temporary)
    engine.wait()
    if engine.rank == 0:
        (temporary / _NOTE).write_text(json.dumps(owner, sort_keys=True, default=str))
        for path in [*temporary.rglob("*"), temporary]:
            _fsync(path)
        _discard(_path(folder, epoch))
        temporary.rename(_path(folder, epoch))
        _fsync(folder)
        for old in folder.iterdir():
            if old != _path(folder, epoch):
                _discard(old)
    engine.wait()


def load_state(engine: "Engine", folder: Path, epoch: int) -> None:
    """Continue as after ``epoch``."""
    engine.load(_path(folder, epoch))


def saved_epoch(folder: Path, epochs: int, owner: Mapping[str, Any]) -> int:
    """The newest epoch whose state is there and belongs to ``owner``; 0 if there is none."""
    wanted = json.dumps(owner, sort_keys=True, default=str)
    for epoch in range(epochs, 0, -1):
        note = _path(folder, epoch) / _NOTE
        if note.exists() and note.read_text() == wanted:
            return epoch
    return 0


def delete_states(folder: Path) -> None:
    """Forget every state: the round is finished."""
    if folder.exists():
        for state in folder.iterdir():
            _discard(state)
        folder.rmdir()


def _discard(state: Path) -> None:
    """Note first: a half-deleted state must not look like a whole one."""
    (state / _NOTE).unlink(missing_ok=True)
    shutil.rmtree(state, ignore_errors=True)


def _path(folder: Path, epoch: int) -> Path:
    return folder / f"epoch_{epoch:02d}"


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

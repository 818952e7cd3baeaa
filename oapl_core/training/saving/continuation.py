"""One optimiser through all rounds (`training.optimizer_state = "continued"`; paper, Algorithm 1).

A round that is not the last writes 4_checkpoint/<objective>/optimizer_state: weights as the optimiser steps them
(float32) and both moments. It is in pieces that any number of ranks reads (``pieces.py``). The next round's training
begins from that state, not from the exported weights. It deletes the state when the round is trained, so that two lie
on the disk at most. Reads the ledger.
"""

import shutil
from contextlib import nullcontext
from typing import TYPE_CHECKING

from oapl_core.errors import DataError
from oapl_core.progress import say
from oapl_core.run_folder.integrity import damage
from oapl_core.run_folder.ledger import RemovalEntry
from oapl_core.run_folder.recorded import Draft, temporary

if TYPE_CHECKING:
    from oapl_core.training.engine import TrainingEngine
    from oapl_core.training.job import Job

LET_GO = "the next round is trained"
"""Why a state was deleted, in the ledger."""


def take_over(job: "Job", engine: "TrainingEngine") -> None:
    """Load weights and moments of the round before; every rank calls it.

    Raises:
        DataError: the state does not hold the bytes that were recorded; others would silently give other weights.
    """
    run, before = job.run, job.round_number - 1
    path = run.optimizer_state(before)
    entry = run.ledger.artifacts()[run.name(path)]
    if wrong := engine.of_first(lambda: damage(path, entry, thorough=True)):
        raise DataError(f"{path}: {wrong}; `oapl run {run.root} --redo training --round {before}` makes it again")
    engine.load(path)
    if engine.rank == 0:
        say(f"round {job.round_number}: the optimiser continues from round {job.round_number - 1}")


def hand_on(job: "Job", engine: "TrainingEngine") -> None:
    """Write the state that the next round continues from, unless it is there; every rank calls it."""
    path = job.kept_state
    if path is None:
        return
    is_first = engine.rank == 0
    # One rank reads the ledger for all: a rank that read it later could see the line that the first one has just
    # written, skip the saving, and leave the others waiting.
    if engine.of_first(lambda: job.run.is_done(path, job.inputs, job.settings)):
        return
    writing = job.run.writing(path, job.inputs, job.settings) if is_first else nullcontext(Draft(temporary(path)))
    with writing as draft:
        if is_first:
            draft.path.mkdir()
        engine.wait()  # the folder is there
        engine.save(draft.path)
        engine.wait()  # every rank's share is in it, so it may be hashed and recorded
        draft.details = {"updates": engine.updates, "ranks": engine.ranks}
    engine.wait()  # no rank is done before the round is
    if is_first:
        say(f"round {job.round_number}: the optimiser's state is kept for round {job.round_number + 1}")


def drop_unfinished(job: "Job") -> None:
    """Delete a state that was being written when its process died; before room on the disk is counted."""
    if job.kept_state:
        shutil.rmtree(temporary(job.kept_state), ignore_errors=True)


def drop_taken_over(job: "Job") -> None:
    """Delete the state that the round began from; one rank calls it, when the round is trained."""
    if not job.run.config.continues_optimizer(job.round_number):
        return
    path = job.run.optimizer_state(job.round_number - 1)
    entry = job.run.ledger.artifacts().get(job.run.name(path))
    # recorded first: a kill between the two leaves a folder that nobody counts on, not a line about one that is gone
    if entry and entry.artifact not in job.run.ledger.removals():
        job.run.ledger.append(RemovalEntry(entry.artifact, entry.sha256, entry.bytes, LET_GO))
    shutil.rmtree(path, ignore_errors=True)

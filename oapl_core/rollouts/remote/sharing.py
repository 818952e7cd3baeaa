"""Queue of a round in the mirror, as a process that samples uses it: in the run folder, or on a machine that joined.

The run folder takes what others have finished as if it had been sampled here, after it was compared with what the
round asks for. A machine that joined sends what it has finished. Reads and writes the queue (``part_queue.py``), the
run folder's parts and its ledger.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oapl_core.errors import DataError
from oapl_core.progress import say
from oapl_core.rollouts.parts import Part
from oapl_core.rollouts.remote.part_queue import PartQueue
from oapl_core.run_folder.object_store import Unreachable
from oapl_core.run_folder.parts import lock, unlock
from oapl_core.run_folder.run import Run
from oapl_core.seeds import derive_seed
from oapl_core.tables import ROLLOUTS, read_table

_COMPARED = ["run", "round", "problem_id", "sample", "policy_hash", "seed", "max_tokens", "response_ids", "logprobs"]


@dataclass(frozen=True)
class Provenance:
    """Weights, inputs and settings that a round's parts are made from; a part made from others is sampled again."""

    policy_hash: str
    inputs: Mapping[str, str]
    settings: Mapping[str, Any]

    def has_made(self, run: Run, part: Part) -> bool:
        """Tell whether ``part`` is recorded, of this provenance, and still what was recorded."""
        return run.is_done(part.path, self.inputs, self.settings)


@dataclass(frozen=True)
class Sharing:
    """One process's side of the queue."""

    queue: PartQueue
    run: Run
    number: int
    provenance: Provenance
    is_holder: bool
    """Whether ``run`` is the run itself, not a machine that joined it."""

    def finished(self, parts: Mapping[str, Part]) -> set[str]:
        """Return the names of the ``parts`` that somebody has finished."""
        return {name for name, part in parts.items() if self.queue.done(part.path.stem) is not None}

    def settle(self, part: Part) -> int | None:
        """Count tokens of a part that another machine finished, which the run folder has then; None: it is missing."""
        record = self.queue.done(part.path.stem)
        if record is None:
            return None
        if not self.is_holder:
            return int(record["details"]["response_tokens"])
        # The lock that sampling the part takes: of the processes in this folder one fetches it, or samples it.
        folder = self.run.in_flight(self.number) / part.path.stem
        held = lock(folder)
        if held is None:  # another process of this folder is at it
            return None
        try:
            if self.provenance.has_made(self.run, part) or self._take(part, record):
                return int(record["details"]["response_tokens"])
            return None
        finally:
            unlock(folder, held)

    def send(self, part: Part) -> None:
        """Say that ``part``, which is recorded here, is finished, and give its file to the run unless this is it."""
        details = self.run.ledger.artifacts()[self.run.name(part.path)].details
        self.queue.finish(part.path.stem, None if self.is_holder else part.path, details)

    def send_recorded(self, parts: Sequence[Part]) -> None:
        """Send, as ``send`` does, the ``parts`` that an earlier process was killed before it had sent."""
        for part in parts:
            if self.queue.done(part.path.stem) is None:
                self.send(part)

    def _take(self, part: Part, record: Mapping[str, Any]) -> bool:
        """Record the file of another machine, if it is what was asked for; else have the part sampled again."""
        wrong = "has no file"
        if record["answers"]:
            try:
                with self.run.writing(part.path, self.provenance.inputs, self.provenance.settings) as draft:
                    if not self.queue.fetch(part.path.stem, record, draft.path):
                        raise DataError("is not the file that was sent")
                    draft.rows = self._checked(part, draft.path)
                    draft.details = dict(record["details"])
                say(f"{part.path.name}: sampled by another machine")
                return True
            except Unreachable as error:
                say(f"{part.path.name}: {error}; its answers are fetched later")
                return False
            except DataError as error:
                wrong = str(error)
        say(f"{part.path.name} in the queue {wrong}; it is sampled again")
        self.queue.reopen(part.path.stem)
        return False

    def _checked(self, part: Part, path: Path) -> int:
        """Return the number of rows of ``path``.

        Raises:
            DataError: they are not the answers that the round asks for.
        """
        rows = read_table(path, ROLLOUTS, _COMPARED).to_pylist()
        asked = [(problem, sample) for problem in part.problems for sample in range(part.group_size)]
        if [(row["problem_id"], row["sample"]) for row in rows] != asked:
            raise DataError("has other problems or samples")
        if any(row["policy_hash"] != self.provenance.policy_hash for row in rows):
            raise DataError("was sampled by other weights")
        if not all(map(self._is_ours, rows)):
            raise DataError("has rows of another run, seed or length, or without log-probs")
        return len(rows)

    def _is_ours(self, row: Mapping[str, Any]) -> bool:
        seed = derive_seed(self.run.config.seed, "rollout", self.number, row["problem_id"], row["sample"])
        made = (row["run"], row["round"], row["seed"], row["max_tokens"])
        return made == (self.run.root.name, self.number, seed, self.run.config.sampling.max_tokens) and 0 < len(
            row["response_ids"]
        ) == len(row["logprobs"])

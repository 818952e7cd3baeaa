"""Bytes in a run folder, by kind and round. Reads names, sizes and link counts; opens no file."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from oapl_core.run_folder.run import IN_FLIGHT, OPTIMIZER_STATE, SAVED_STATES, SUPERSEDED

ROUND_KINDS = ("rollouts", "verdicts", "groups", "checkpoints", "optimiser states", "evaluation")
RUN_KINDS = ("problems", "logs", "report", "record", "superseded", "scratch", "other")
KINDS = (*ROUND_KINDS, *RUN_KINDS)
"""`record` is run.json, the ledger and the lock; `scratch` what is being written or was when a process died."""
_BY_NUMBER = {"1_": "rollouts", "2_": "verdicts", "3_": "groups", "4_": "checkpoints", "5_": "evaluation"}
_AT_TOP = {
    "problems.parquet": "problems",
    "prompts.parquet": "problems",
    "base_model.json": "problems",
    "logs": "logs",
    "report": "report",
    "run.json": "record",
    "ledger.jsonl": "record",
    "run.lock": "record",
    "run.helpers": "record",
    SUPERSEDED: "superseded",
}


@dataclass(frozen=True)
class StoredFile:
    """One file of a run folder."""

    path: Path
    kind: str
    """Name of one of KINDS."""
    round: int | None
    """Counted from 0; None outside rounds."""
    bytes: int
    is_shared: bool
    """Whether another run (a fork) has it too: deleting it here frees nothing."""


def stored_files(root: Path) -> Iterator[StoredFile]:
    """Yield every file of the folder, in the order of their names; one that vanishes meanwhile is left out."""
    for path in sorted(root.rglob("*")):
        try:
            found = path.lstat()
        except FileNotFoundError:
            continue
        if path.is_dir() and not path.is_symlink():
            continue
        kind, number = classify(path.relative_to(root).parts)
        yield StoredFile(path, kind, number, found.st_size, found.st_nlink > 1)


def classify(parts: tuple[str, ...]) -> tuple[str, int | None]:
    """Kind and round of a file, from the parts of its name relative to the run folder."""
    top, *below = parts
    number = int(top.removeprefix("round_")) if top.startswith("round_") and top[6:].isdigit() else None
    if any(part.startswith(".tmp-") or part == IN_FLIGHT for part in parts):
        return "scratch", number
    if number is None or not below:
        return _AT_TOP.get(top, "other"), number
    kind = _BY_NUMBER.get(below[0][:2], "other")
    is_state = kind == "checkpoints" and not {SAVED_STATES, OPTIMIZER_STATE}.isdisjoint(below)
    return ("optimiser states" if is_state else kind), number


def total(files: Iterable[StoredFile]) -> Counter[str]:
    """Sum up the bytes by kind."""
    found: Counter[str] = Counter()
    for file in files:
        found[file.kind] += file.bytes
    return found

"""`oapl du`: what a run takes on the disk."""

from collections.abc import Iterator, Sequence
from typing import Any

from deployments.arguments import OpenedRun
from deployments.terminal import console, numbers_table, print_json, tell
from oapl_core.changing.cleaning import CleaningRules, candidates
from oapl_core.files import readable_size
from oapl_core.run_folder.run import Run
from oapl_core.run_folder.storage import KINDS, ROUND_KINDS, StoredFile, stored_files, total

_SHOWN_RULES = (
    *("checkpoints=last", "checkpoints=chosen", "rollouts=1", "rollouts=0"),
    *("groups=0", "evaluation=0", "superseded=0"),
)


def du(run: OpenedRun) -> None:
    """Show what a run takes on the disk, by kind and round, and what `oapl clean` would free."""
    files = list(stored_files(run.root))
    if print_json(lambda: _facts(run, files)):
        return
    tell(f"{run.root}: {readable_size(sum(file.bytes for file in files))} in {len(files):,} files")
    _print_kinds(files)
    _print_rounds(files)
    shared = sum(file.bytes for file in files if file.is_shared)
    if shared:
        tell(f"{readable_size(shared)} of it are shared with forks of this run, or with the run that this is a fork of")
    removed = run.ledger.removals().values()
    if removed:
        tell(f"{readable_size(sum(entry.bytes for entry in removed))} were removed by `oapl clean` before")
    tell("`oapl clean` would free:")
    for words, freed in _freed(run):
        rule = f"--keep {words[0]}" if words else "scratch of finished rounds"
        tell(f"  {readable_size(freed):>9}  {rule}")


def _freed(run: Run) -> Iterator[tuple[tuple[str, ...], int]]:
    """Yield rules of `oapl clean` with the bytes that each would free, those without one first."""
    for words in ((), *((rule,) for rule in _SHOWN_RULES)):
        going = [item for item in candidates(run, CleaningRules.parse(words)) if not item.needed_for]
        # scratch goes by every rule; it is counted once, on the line without one
        scratch = () if not words else tuple(item for item in going if item.entry is None and item.kind != "superseded")
        freed = sum(item.freed_bytes for item in going) - sum(item.freed_bytes for item in scratch)
        if freed:
            yield words, freed


def _facts(run: Run, files: Sequence[StoredFile]) -> dict[str, Any]:
    rounds = sorted({file.round for file in files if file.round is not None})
    return {
        "run": run.root,
        "files": len(files),
        "bytes": sum(file.bytes for file in files),
        "shared_bytes": sum(file.bytes for file in files if file.is_shared),
        "removed_bytes": sum(entry.bytes for entry in run.ledger.removals().values()),
        "kinds": total(files),
        "rounds": {number: total(file for file in files if file.round == number) for number in rounds},
        "would_free": {words[0] if words else "scratch": freed for words, freed in _freed(run)},
    }


def _print_kinds(files: Sequence[StoredFile]) -> None:
    table = numbers_table("kind", "files", "size")
    sizes = total(files)
    for kind in KINDS:
        if sizes[kind]:
            table.add_row(kind, f"{sum(file.kind == kind for file in files):,}", readable_size(sizes[kind]))
    console.print(table)


def _print_rounds(files: Sequence[StoredFile]) -> None:
    rounds = sorted({file.round for file in files if file.round is not None})
    kinds = [kind for kind in ROUND_KINDS if total(files)[kind]]
    if not rounds or not kinds:
        return
    table = numbers_table("round", *kinds)
    for number in rounds:
        sizes = total(file for file in files if file.round == number)
        table.add_row(str(number), *(readable_size(sizes[kind]) if sizes[kind] else "" for kind in kinds))
    console.print(table)

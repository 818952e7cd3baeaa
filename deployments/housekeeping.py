"""`oapl du` and `oapl clean`: what a run takes on the disk, and letting go of what nothing needs."""

from collections.abc import Iterable, Sequence

from rich.table import Table

from deployments.terminal import console, tell
from oapl_core.changing.cleaning import Candidate, Rules, candidates, remove
from oapl_core.run_folder.lock import hold
from oapl_core.run_folder.mirror_thread import catch_up
from oapl_core.run_folder.run import Run
from oapl_core.run_folder.storage import KINDS, ROUND_KINDS, StoredFile, readable, stored_files, total

_SHOWN_RULES = ("checkpoints=last", "checkpoints=chosen", "rollouts=1", "rollouts=0", "groups=0", "superseded=0")


def show_usage(run: Run) -> None:
    """Bytes by kind, by round, and what each rule would give back; changes nothing."""
    files = list(stored_files(run))
    tell(f"{run.root}: {readable(sum(file.bytes for file in files))} in {len(files):,} files")
    _print_kinds(files)
    _print_rounds(files)
    shared = sum(file.bytes for file in files if file.is_shared)
    if shared:
        tell(f"{readable(shared)} of it are shared with forks of this run, or with the run that this is a fork of")
    removed = run.ledger.removals().values()
    if removed:
        tell(f"{readable(sum(entry.bytes for entry in removed))} were removed by `oapl clean` before")
    tell("`oapl clean` would free:")
    for words in ((), *([rule] for rule in _SHOWN_RULES)):
        going = [one for one in candidates(run, Rules.parse(words)) if not one.needed_for]
        rule = f"--keep {words[0]}" if words else "scratch of finished rounds"
        scratch = () if not words else tuple(one for one in going if one.entry is None and one.kind != "superseded")
        freed = sum(one.freed_bytes for one in going) - sum(one.freed_bytes for one in scratch)
        if freed:
            tell(f"  {readable(freed):>9}  {rule}")


def _print_kinds(files: Sequence[StoredFile]) -> None:
    table = Table("kind", "files", "size", box=None)
    for column in table.columns[1:]:
        column.justify = "right"
    sizes = total(files)
    for kind in KINDS:
        if sizes[kind]:
            table.add_row(kind, f"{sum(file.kind == kind for file in files):,}", readable(sizes[kind]))
    console.print(table)


def _print_rounds(files: Sequence[StoredFile]) -> None:
    rounds = sorted({file.round for file in files if file.round is not None})
    kinds = [kind for kind in ROUND_KINDS if total(files)[kind]]
    if not rounds or not kinds:
        return
    table = Table("round", *kinds, box=None)
    for column in table.columns:
        column.justify = "right"
    for number in rounds:
        sizes = total(file for file in files if file.round == number)
        table.add_row(str(number), *(readable(sizes[kind]) if sizes[kind] else "" for kind in kinds))
    console.print(table)


def clean(run: Run, keep: Sequence[str], yes: bool) -> None:
    """Show what the rules let go and why some of it stays; delete it only with ``yes``.

    Raises:
        ConfigError: a rule is not one.
        StageFailed: the mirror lacks something and cannot be reached; nothing was deleted.
        LedgerError: a process is working on the run.
    """
    rules = Rules.parse(keep)
    with hold(run.root):
        found = candidates(run, rules)
        going = [one for one in found if not one.needed_for]
        _print_candidates(going)
        for why in dict.fromkeys((one.kind, one.round, one.needed_for) for one in found if one.needed_for):
            kind, number, reason = why
            where = "" if number is None else f" of round {number}"
            tell(f"stays: {kind}{where}: {reason}")
        size = readable(sum(one.freed_bytes for one in going))
        if not going:
            tell(f"{run.root}: nothing to remove")
        elif yes:
            catch_up(run, tell)
            remove(run, going)
            tell(f"{run.root}: {size} freed; the ledger records what went, and nothing is made again for it")
        else:
            tell(f"{run.root}: {size} would be freed; nothing was deleted, do it with --yes")


def _print_candidates(going: Iterable[Candidate]) -> None:
    grouped: dict[tuple[str, int | None, str], list[Candidate]] = {}
    for one in going:
        grouped.setdefault((one.kind, one.round, one.rule), []).append(one)
    if not grouped:
        return
    table = Table("goes", "round", "artifacts", "size", "rule", box=None)
    for column in table.columns[1:4]:
        column.justify = "right"
    for (kind, number, rule), mine in grouped.items():
        size = readable(sum(one.bytes for one in mine))
        table.add_row(kind, "" if number is None else str(number), str(len(mine)), size, rule)
    console.print(table)

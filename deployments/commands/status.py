"""`oapl status`: which steps of a run are finished, what they made, and where the time went."""

from collections.abc import Sequence

from deployments.arguments import OpenedRun
from deployments.terminal import console, numbers_table, tell
from oapl_core.planning.plan import finished, steps, times
from oapl_core.run_folder.draws import draw_file, told
from oapl_core.run_folder.run import Run


def status(run: OpenedRun) -> None:
    """Show which steps of a run are finished and what they made."""
    done = [step.title for step in finished(run)]
    tell(f"{run.root}: {len(done)} of {len(steps(run.config))} steps finished")
    for fork in run.ledger.forks()[:1]:
        tell(f"forked from {fork.parent} at {fork.stage} of round {fork.round}; {'; '.join(fork.changes)}")
    print_plan(run, done)
    for number in range(len(run.config.rounds)):
        entry = run.ledger.artifacts().get(run.name(draw_file(run, number)))
        if entry:
            tell(f"round {number} {told(entry.details)}")
    _print_artifacts(run)
    print_times(run)


def print_plan(run: Run, done_titles: Sequence[str]) -> None:
    """Every step with its state."""
    for step in steps(run.config):
        mark = "done" if step.title in done_titles else "to do"
        tell(f"  {mark:<6} {step.title:<24} python -m oapl_core.{step.verb}")


def _print_artifacts(run: Run) -> None:
    table = numbers_table("artifact", "rows", "MiB", "seconds")
    removed = run.ledger.removals()
    for name, entry in run.ledger.artifacts().items():
        shown = f"{name} (removed)" if name in removed else name
        table.add_row(shown, f"{entry.rows:,}", f"{entry.bytes / 2**20:.2f}", f"{entry.seconds:.1f}")
    if table.row_count:
        console.print(table)


def print_times(run: Run) -> None:
    """Where the time went, per stage; a stage that was interrupted and continued counts all its processes."""
    title = "Where the time went"
    table = numbers_table("stage", "seconds", "share", "processes", title=title, title_justify="left")
    rows = list(times(run))
    # a stage that runs in parallel with another one counts only what it adds, so that shares sum up to 100 %
    total = sum(row.added_s for row in rows) or 1.0
    for row in rows:
        share = f"{row.added_s / total:.0%}"
        table.add_row(row.step.title, f"{row.seconds:.1f}", share, str(row.processes))
    table.add_row("total", f"{total:.1f}", "100%", str(sum(row.processes for row in rows)), style="bold")
    console.print(table)

"""`oapl status`: which steps of a run are finished, what they made, and where the time went."""

import re
from collections.abc import Sequence
from typing import Annotated

import typer

from deployments.arguments import OpenedRun
from deployments.terminal import console, numbers_table, tell
from oapl_core.planning.plan import finished, steps, times
from oapl_core.run_folder.draws import draw_file, told
from oapl_core.run_folder.ledger import ArtifactEntry
from oapl_core.run_folder.run import Run

_PART = re.compile(r"-\d{5}(?=\.parquet$)")


def status(
    run: OpenedRun, parts: Annotated[bool, typer.Option("--parts", help="Show each part in a line of its own.")] = False
) -> None:
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
    _print_artifacts(run, parts)
    print_times(run)


def print_plan(run: Run, done_titles: Sequence[str]) -> None:
    """Print every step with its state."""
    for step in steps(run.config):
        mark = "done" if step.title in done_titles else "to do"
        tell(f"  {mark:<6} {step.title:<24} python -m oapl_core.{step.verb}")


def _print_artifacts(run: Run, parts: bool) -> None:
    """Print the artifacts; parts of one thing in one line, unless each is asked for."""
    table = numbers_table("artifact", "rows", "MiB", "seconds")
    removed, together = run.ledger.removals(), dict[str, list[ArtifactEntry]]()
    for name, entry in run.ledger.artifacts().items():
        together.setdefault(name if parts else _PART.sub("-*", name), []).append(entry)
    for pattern, entries in together.items():
        gone = sum(entry.artifact in removed for entry in entries)
        if len(entries) == 1:
            shown = entries[0].artifact + " (removed)" * gone
        else:
            shown = f"{pattern} ({len(entries)} parts" + (f", {gone} removed)" if gone else ")")
        rows, size, seconds = (sum(getattr(one, key) for one in entries) for key in ("rows", "bytes", "seconds"))
        table.add_row(shown, f"{rows:,}", f"{size / 2**20:.2f}", f"{seconds:.1f}")
    if table.row_count:
        console.print(table)


def print_times(run: Run) -> None:
    """Print the seconds of each stage; an interrupted and continued stage counts all its processes."""
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

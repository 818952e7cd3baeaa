"""What a person sees in the terminal: progress lines, tables, one-line errors."""

import logging
import time
from collections.abc import Sequence

from rich.console import Console
from rich.status import Status
from rich.table import Table

from oapl_core.planning.plan import finished, steps, times
from oapl_core.run_folder.run import Run

console = Console(highlight=False)
errors = Console(stderr=True, highlight=False)


def tell(text: str) -> None:
    """Print one line as it is: no markup, no hard line breaks (a path stays a path)."""
    console.print(text, markup=False, soft_wrap=True)


class Narrator(logging.Handler):
    """Shows progress lines with the time since the start and the step of the plan.

    On a terminal the newest line of a step replaces the one before it; elsewhere (a log, CI) each line is printed.
    """

    def __init__(self, titles: Sequence[str]) -> None:
        """``titles``: of the plan's steps, in order."""
        super().__init__(logging.INFO)
        self._titles = list(titles)
        self._start = time.monotonic()
        self._step = ""
        self._status: Status | None = console.status("starting Prefect") if console.is_terminal else None
        if self._status:
            self._status.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Show one line; ``<title>: starting`` begins a step."""
        text = record.getMessage()
        title = text.removesuffix(": starting")
        begins = title != text and title in self._titles
        if begins:
            self._step = f"step {self._titles.index(title) + 1}/{len(self._titles)}"
        minutes, seconds = divmod(int(time.monotonic() - self._start), 60)
        line = f"{minutes:3d}:{seconds:02d}  {self._step:<10}  {text}"
        if self._status and not begins:
            self._status.update(line)
        if begins or not self._status or _is_last(text):
            tell(line)

    def close(self) -> None:
        """Take the live line away."""
        if self._status:
            self._status.stop()
        super().close()


def _is_last(text: str) -> bool:
    """A progress line with nothing left to do (``600/600 rollouts``), or a plain message."""
    for part in text.split(" | "):
        done, slash, total = part.split(" ")[0].partition("/")
        if slash and done.isdigit() and total.isdigit():
            return done == total
    return True


def print_times(run: Run) -> None:
    """Where the time went, per stage; a stage that was interrupted and continued counts all its processes."""
    table = Table("stage", "seconds", "share", "processes", title="Where the time went", title_justify="left", box=None)
    for column in table.columns[1:]:
        column.justify = "right"
    rows = list(times(run))
    total = sum(row.added_s for row in rows) or 1.0
    for row in rows:
        share = f"{row.added_s / total:.0%}"
        table.add_row(row.step.title, f"{row.seconds:.1f}", share, str(row.processes))
    table.add_row("total", f"{total:.1f}", "100%", str(sum(row.processes for row in rows)), style="bold")
    console.print(table)


def print_plan(run: Run, done_titles: Sequence[str]) -> None:
    """Every step with its state."""
    for step in steps(run.config):
        mark = "done" if step.title in done_titles else "to do"
        tell(f"  {mark:<6} {step.title:<24} python -m oapl_core.{step.verb}")


def print_status(run: Run) -> None:
    """The plan's state, then each artifact with rows and size."""
    done = [step.title for step in finished(run)]
    tell(f"{run.root}: {len(done)} of {len(steps(run.config))} steps finished")
    for fork in run.ledger.forks()[:1]:
        tell(f"forked from {fork.parent} at {fork.stage} of round {fork.round}; {'; '.join(fork.changes)}")
    print_plan(run, done)
    table = Table("artifact", "rows", "MiB", "seconds", box=None)
    for column in table.columns[1:]:
        column.justify = "right"
    removed = run.ledger.removals()
    for name, entry in run.ledger.artifacts().items():
        shown = f"{name} (removed)" if name in removed else name
        table.add_row(shown, f"{entry.rows:,}", f"{entry.bytes / 2**20:.2f}", f"{entry.seconds:.1f}")
    if table.row_count:
        console.print(table)

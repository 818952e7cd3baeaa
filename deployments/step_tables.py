"""Tables of a run's steps: which are done, and where the time went. For `oapl run` and `oapl status`."""

from collections.abc import Sequence

from deployments.terminal import console, numbers_table, tell
from oapl_core.planning.plan import module_of, steps, times, wanted
from oapl_core.run_folder.run import Run
from oapl_core.settings.rounds import rounds_in_words


def print_plan(run: Run, done_titles: Sequence[str]) -> None:
    """Print every step with its state, and what rounds have of their own."""
    for step in steps(run.config):
        mark = "done" if step.title in done_titles else "to do" if step in wanted(run) else "later"
        tell(f"  {mark:<6} {step.title:<24} python -m {module_of(step.verb)}")
    for which, own in rounds_in_words(run.config.rounds):
        tell(f"{which}: {own}")


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

"""`oapl check`: every byte of a run against what the ledger recorded."""

import typer

from deployments.arguments import OpenedRun
from deployments.terminal import tell
from oapl_core.run_folder.integrity import findings
from oapl_core.run_folder.lock import hold


def check(run: OpenedRun) -> None:
    """Compare every byte of a run with what was recorded; name what is damaged, for `oapl run` to make it again."""
    with hold(run.root):  # a stage that writes would look like damage
        looked_at = list(findings(run))
    damaged = [finding for finding in looked_at if finding.wrong]
    for finding in damaged:
        tell(f"{finding.name} {finding.wrong}")
    if damaged:
        count = f"{len(damaged)} of {len(looked_at)}"
        tell(f"{run.root}: {count} files are damaged; `oapl run` makes them again, and only them")
        raise typer.Exit(2)
    removed = len(run.ledger.removals())
    gone = f"; {removed} were removed by `oapl clean`" if removed else ""
    tell(f"{run.root}: all {len(looked_at)} artifacts and inputs are what was recorded{gone}")

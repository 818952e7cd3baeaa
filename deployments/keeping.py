"""Keeping a run: is every byte still what was recorded, and getting it back from its mirror."""

from pathlib import Path
from urllib.parse import urlsplit

from deployments.terminal import tell
from oapl_core.run_folder.integrity import findings
from oapl_core.run_folder.lock import hold
from oapl_core.run_folder.mirror import Mirror
from oapl_core.run_folder.opening import fetch_into
from oapl_core.run_folder.run import Run


def check(run: Run) -> int:
    """Print every damaged artifact; 2 if there is one, else 0.

    Raises:
        LedgerError: a process is working on the run.
    """
    with hold(run.root):
        found = list(findings(run))
    damaged = [finding for finding in found if finding.wrong]
    for finding in damaged:
        tell(f"{finding.name} {finding.wrong}")
    if damaged:
        tell(
            f"{run.root}: {len(damaged)} of {len(found)} files are damaged; `oapl run` makes them again, and only them"
        )
        return 2
    removed = len(run.ledger.removals())
    gone = f"; {removed} were removed by `oapl clean`" if removed else ""
    tell(f"{run.root}: all {len(found)} artifacts and inputs are what was recorded{gone}")
    return 0


def fetch(url: str, folder: Path | None) -> None:
    """Make a run folder of the copy at ``url``.

    Raises:
        OaplError: there is no run at the URL or one in the folder already, or the store does not answer.
    """
    root = folder or Path("data/runs") / urlsplit(url).path.rstrip("/").rpartition("/")[2]
    with hold(root):
        fetch_into(Mirror(url, tell=tell), url, root, tell)

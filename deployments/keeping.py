"""Keeping a run: is every byte still what was recorded?"""

from deployments.terminal import tell
from oapl_core.artifacts import Run
from oapl_core.integrity import findings
from oapl_core.ledger import hold


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
    tell(f"{run.root}: all {len(found)} artifacts and inputs are what was recorded")
    return 0

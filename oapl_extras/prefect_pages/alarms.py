"""The observer that tells of what a person should look at (oapl_core/reports/alarms.py), after the stage that knows it.

Reads the ledger; writes warnings to the flow run's log, and events to Prefect's server, for automations.
"""

import logging
from collections.abc import Callable

from prefect.events import emit_event

from oapl_core.planning.plan import steps
from oapl_core.reports.alarms import alarms
from oapl_core.run_folder.following import Observer
from oapl_core.run_folder.ledger import StageEntry
from oapl_core.run_folder.run import Run
from oapl_core.run_folder.run_record import RunRecord

progress = logging.getLogger("oapl_core.progress")


class Alarms(Observer):
    """Tells of each alarm of a round, once its stage has ended well."""

    def __init__(self, run: Run, tell: Callable[[str], None]) -> None:
        """Take the steps of the run; lines are warnings of the log, which ``tell`` cannot make."""
        self._run, self._steps = run, {step.label: step for step in steps(run.config)}

    def on_stage(self, entry: StageEntry) -> None:
        """Log the alarms that can be known after the stage, and emit an event for each."""
        step = self._steps.get(entry.stage)
        if entry.exit_code or step is None or step.round is None:
            return
        name = self._run.root.name
        for alarm in alarms(RunRecord(self._run), step.round, after=step.verb):
            progress.warning("%s", alarm.line)
            resource = {"prefect.resource.id": f"oapl.run.{name}", "prefect.resource.name": name}
            emit_event(f"oapl.{alarm.rule}", resource, payload={"round": step.round, "message": alarm.line})

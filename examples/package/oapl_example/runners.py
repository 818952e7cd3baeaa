"""Stages that give way to other work of this machine: ``[fleet] verdicts = {runner = "polite", shares = 2}``."""

import json
import sys
import time
from datetime import UTC, datetime

from oapl_core.errors import ConfigError, OaplError
from oapl_core.launch import Process
from oapl_core.planning.plan import Step, made_by, module_of
from oapl_core.run_folder.ledger import StageEntry
from oapl_core.run_folder.run import Run
from oapl_core.runner import Tell


class Polite:
    """This machine through ``nice``; what it started is in logs/polite.jsonl of the run.

    A runner for another machine starts ``python -m tasks.elsewhere ORDER`` there (its ``Order``).
    """

    def __init__(self, at: str | None) -> None:
        """Read the niceness from `fleet.STAGE.at`.

        Args:
            at: 0 to 19, higher for lower priority; unset: 10.

        Raises:
            ConfigError: it is no such number.
        """
        at = "10" if at is None else at
        if not (at.isdecimal() and int(at) <= 19):
            raise ConfigError(f"fleet: at = {at!r} is not a niceness; the runner 'polite' takes '0' to '19'")
        self._niceness = at

    def start(self, run: Run, step: Step, tell: Tell) -> Process:
        """Start the process of ``step`` and return; called again for each helper, and after a failure.

        Args:
            run: its folder, held by the process that calls.
            step: what to do.
            tell: gets lines for people.

        Returns:
            The process, which ends with all its descendants when the caller ends, however that comes.
        """
        module = [str(run.python or sys.executable), "-m", module_of(step.verb), str(run.root), *step.arguments]
        command, log, begun = ["nice", "-n", self._niceness, *module], run.log(step.label), time.monotonic()
        log.parent.mkdir(parents=True, exist_ok=True)
        with (log.parent / "polite.jsonl").open("a", encoding="utf-8") as file:
            print(json.dumps({"at": datetime.now(UTC).isoformat(), "step": step.label, "command": command}), file=file)

        def ended(code: int, failure: OaplError | None) -> None:
            # reports count a stage's time from these lines
            made = [] if code else made_by(run, step.label)
            run.ledger.append(
                StageEntry(step.label, round(time.monotonic() - begun, 3), code, str(failure or ""), made)
            )

        tell(f"{step.title}: with niceness {self._niceness}")
        return Process(step.label, command, log, tell, run.config.time_limits_h.seconds(step.verb), ended)

"""A runner that puts a command before a stage's own: ``[fleet] verdicts = {runner = "behind", at = "nice -n 19"}``.

With ``at = "ssh HOST"``, or srun with its options, the stage runs on another machine that sees the run folder.
"""

import json
import shlex
import sys
from dataclasses import asdict

from oapl_core.errors import ConfigError
from oapl_core.launch import Process
from oapl_core.planning.plan import Step
from oapl_core.run_folder.run import Run
from oapl_core.runner import Order, Tell


class Behind:
    """Processes started behind a command."""

    def __init__(self, at: str | None) -> None:
        """Keep the command.

        Raises:
            ConfigError: there is none.
        """
        self._command = shlex.split(at or "")
        if not self._command:
            raise ConfigError('fleet: the runner "behind" needs `at`, a command such as "nice -n 19"')

    def start(self, run: Run, step: Step, tell: Tell) -> Process:
        """Start the step and return; the process that comes back can be waited for and ended."""
        order = json.dumps(asdict(Order.of(run, step)))
        # a log beside the stage's own, which the stage writes itself
        log = run.log(f"behind {step.label}")
        log.parent.mkdir(parents=True, exist_ok=True)
        # a shell on the other side reads the words again: the order must stay one word
        is_shell = self._command[0] == "ssh"
        order = shlex.quote(order) if is_shell else order
        return Process(step.title, [*self._command, sys.executable, "-m", "tasks.elsewhere", order], log, tell)

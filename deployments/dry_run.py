"""`oapl run --dry-run`, which finds this by the option's name: the resolved experiment and the state of its steps."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from deployments.step_tables import print_plan
from deployments.terminal import console
from oapl_core.planning.plan import finished
from oapl_core.pretraining.solutions import check_solutions
from oapl_core.run_folder.opening import check, find
from oapl_core.run_folder.run import Run


def show_plan(path: Path, overrides: Sequence[str], limit: int | None, aim: Callable[[Run], Run]) -> None:
    """Print the resolved experiment and every step with its state; start and write nothing.

    ``aim`` says how far the run is wanted now.
    """
    run = aim(find(path, overrides, limit))
    check(run.config)
    check_solutions(run)
    console.print_json(json.dumps(run.config.model_dump(mode="json")))
    exists = (run.root / "run.json").exists()
    if exists and not path.is_dir():
        Run.of(run.config)  # says which settings differ
    print_plan(run, [step.title for step in finished(run)] if exists else [])

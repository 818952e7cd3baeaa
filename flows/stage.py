"""One stage of a round on a machine of its own, for the flow that holds the run folder and waits (``[fleet]``)."""

from pathlib import Path

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Completed, Failed

from flows.start import listen
from oapl_core.errors import Held, OaplError
from oapl_core.planning.plan import Step
from oapl_core.run_folder.helping import helping
from tasks.fleet import FLOW
from tasks.stage import execute_here, execute_joined


def run_and_step() -> str:
    """Name of a flow run: ``demo-seed0, round 1: sampling``."""
    given = flow_run.parameters
    step = given["step"] if isinstance(given["step"], Step) else Step(**given["step"])
    return f"{Path(given['run_dir']).name}, {step.title}"


@flow(name=FLOW, flow_run_name=run_and_step)
def oapl_stage(run_dir: Path, step: Step, holder: str, mirror: str | None = None) -> State[None]:
    """Do ``step`` for ``holder``, the token in run.lock, or a part of it where only the run's ``mirror`` is seen.

    Started by other flows, not by people.
    """
    listen()
    try:
        if mirror:
            execute_joined(mirror, step)
        else:
            with helping(run_dir, holder, step.label):
                execute_here(run_dir, step)
    except Held as error:
        return Completed(name="Skipped", message=f"nothing was done: {error}")
    except OaplError as error:  # its kind travels as the state's name
        return Failed(name=type(error).__name__, message=str(error))
    return Completed()

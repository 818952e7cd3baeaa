"""``make deploy``: the work pool, `prefect deploy --all` and the zombie automation, on the server at PREFECT_API_URL.

Reads ``prefect.yaml`` of the current folder, else the one that ships; writes to the server only. Each
argument names a further work pool, for whose workers `[fleet]` may have stages. That pool gets the deployment
``oapl-stage/POOL``, which imports the installed package, so that a checkout may lie anywhere. Doing it again updates
what is there; a work pool that exists keeps its settings.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, cast

import httpx

from deployments.short_names import NAMES
from oapl_core.settings.operation.secrets import masked
from oapl_core.shipped import shipped

if TYPE_CHECKING:
    from prefect.automations import Automation

POOL = "oapl"
SILENT_S = 90
"""A flow run without a heartbeat for so long is dead; one beats every `flows.heartbeat_frequency` seconds."""
FILE = "prefect.yaml"
JOB_VARIABLES = {
    "stream_output": False,
    "env": {"PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30", "PREFECT_LOGGING_EXTRA_LOGGERS": "oapl_core"},
}
"""Job variables of flow runs, as prefect.yaml says them of the other deployments."""
_OVER = ("Completed", "Skipped", "Failed", "Crashed", "Cancelled", "Cancelling", "AwaitingRetry", "Paused", "Suspended")


def main(stage_pools: Sequence[str] = ()) -> int:
    """Deploy from the current folder, in which the flows will run; returns the exit code."""
    if "PREFECT_API_URL" not in os.environ:
        print("error: set PREFECT_API_URL, for example http://127.0.0.1:4200/api")
        return 2
    try:
        for pool in (POOL, *stage_pools):
            make_pool(pool)
    except httpx.TransportError as error:
        print(unreachable(error))
        return 1
    # the pool comes first: `prefect deploy` refuses a deployment whose pool does not exist
    file = FILE if Path(FILE).is_file() else shipped(FILE)
    command = ["--no-prompt", "deploy", "--all", "--prefect-file", str(file)]
    code = subprocess.run([sys.executable, "-m", "prefect", *command]).returncode
    if code == 0:
        for pool in stage_pools:
            deploy_stages(pool)
        watch_for_zombies()
        print(f"deployed; now: make worker, then .venv/bin/prefect deployment run {NAMES[0]}/{NAMES[0]}")
    return code


def here() -> dict[str, str]:
    """Say which code is deployed, and in which folder it is to run: a build step of prefect.yaml."""
    return {"version": code_version(), "folder": str(Path.cwd())}


def code_version() -> str:
    """Return the deployed checkout's commit, ``-changed`` behind it where files differ; else the package's version."""
    try:
        commit, changes = (
            subprocess.run(["git", *words], capture_output=True, text=True, check=True).stdout.strip()
            for words in (["rev-parse", "--short=12", "HEAD"], ["status", "--porcelain", "--untracked-files=no"])
        )
    except (OSError, subprocess.CalledProcessError):  # no git, or no checkout
        return version("oapl")
    return f"{commit}-changed" if changes else commit


def make_pool(name: str) -> None:
    """Make a pool of plain processes, if there is none of that name."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import WorkPoolCreate
    from prefect.exceptions import ObjectNotFound
    from prefect.workers.process import ProcessWorker

    with get_client(sync_client=True) as client:
        try:
            client.read_work_pool(name)
        except ObjectNotFound:
            # without one the template stays empty until a worker of the pool has started
            template = ProcessWorker.get_default_base_job_template()
            client.create_work_pool(WorkPoolCreate(name=name, type="process", base_job_template=template))


def deploy_stages(pool: str) -> None:
    """Deploy the flow of a single stage, for the workers of ``pool``."""
    from prefect.deployments.runner import RunnerDeployment
    from prefect.types.entrypoint import EntrypointType

    from flows.stage import oapl_stage

    RunnerDeployment.from_flow(
        oapl_stage,
        name=pool,
        work_pool_name=pool,
        description="A stage of a run whose [fleet] names this pool; started by the flow of the run.",
        tags=["oapl"],
        version=code_version(),
        job_variables=JOB_VARIABLES,  # the run folder keeps the log of a stage
        # by module: a path of this checkout means nothing on another machine
        entrypoint_type=EntrypointType.MODULE_PATH,
    ).apply()
    print(f"deployed: {oapl_stage.name}/{pool}; now, on its machines: prefect worker start --pool {pool}")


def watch_for_zombies(silent_s: float = SILENT_S) -> None:
    """Make an automation that ends, on the server, runs of our flows whose process and worker are gone.

    Their run folder is free already, since its lock ended with the process; what they still hold are slots of limits.
    """
    from prefect.automations import Automation
    from prefect.client.schemas.objects import StateType
    from prefect.events.actions import ChangeFlowRunState
    from prefect.events.schemas.automations import EventTrigger, Posture
    from prefect.events.schemas.events import ResourceSpecification

    wanted = Automation(
        name="oapl: end runs without a heartbeat",
        description="Flow runs whose process died together with its worker",
        trigger=EventTrigger(
            # the server itself tells of Running: a process may die before its first heartbeat has arrived
            after={"prefect.flow-run.Running", "prefect.flow-run.heartbeat"},
            expect={"prefect.flow-run.heartbeat", *(f"prefect.flow-run.{state}" for state in _OVER)},
            match=ResourceSpecification({"prefect.resource.id": "prefect.flow-run.*"}),
            match_related=ResourceSpecification(
                {"prefect.resource.role": "flow", "prefect.resource.name": [*NAMES, "oapl-stage"]}
            ),
            for_each={"prefect.resource.id"},
            posture=Posture.Proactive,
            threshold=1,
            within=timedelta(seconds=silent_s),
        ),
        actions=[
            ChangeFlowRunState(
                state=StateType.CRASHED, name=None, message=f"no heartbeat for {silent_s:.0f} s", force=False
            )
        ],
    )
    put(wanted)


def put(wanted: "Automation") -> None:
    """Make the automation on the server, or replace the one of that name."""
    from prefect.automations import Automation

    try:
        # an update names what it replaces by its id
        wanted.id = cast(Automation, Automation.read(name=wanted.name)).id
    except ValueError:
        wanted.create()
    else:
        wanted.update()


def unreachable(error: Exception) -> str:
    """Write one line for a server that does not answer."""
    where, why = masked(os.environ["PREFECT_API_URL"]), masked(str(error))
    return f"error: no Prefect server answers at {where} ({why}); `make server` starts one"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

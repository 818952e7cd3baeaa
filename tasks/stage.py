"""The one task there is: run a step's process to its end.

Reads and writes nothing itself. Prefect's result cache is off: whether a step is finished is asked of the run folder.
A retry is cheap because a stage resumes where it stopped: the ledger, not Prefect, knows what is finished. Only what a
machine may do better the next time is retried (StageFailed, OSError). Not retried: a person's mistake, a sandbox that
cannot be proven, a stage that was asked to stop.
"""

import contextvars
import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.concurrency.asyncio import ConcurrencySlotAcquisitionError
from prefect.tasks import Task, exponential_backoff

from oapl_core import runner
from oapl_core.errors import Diverged, StageFailed, Stopped
from oapl_core.planning.plan import Step
from oapl_core.planning.stages import BY_VERB
from oapl_core.run_folder.following import observer
from oapl_core.run_folder.run import Run

progress = logging.getLogger("oapl_core.progress")

RETRY_DELAY_S = 10.0
"""Pause before the first retry; twice as long before each further one."""
_SERVER_AWAY_S = 600.0
_ASK_AGAIN_S = 5.0


def execute(run_dir: Path, step: Step) -> str | None:
    """Run ``step`` in ``run_dir`` and forward its progress lines to the ``oapl_core.progress`` logger.

    Returns:
        Why a rule of the run's settings ended it; None: it ended well.

    Raises:
        OaplError: the stage failed; the message is one line for a person.
    """
    progress.info("%s: starting", step.title)
    run = Run.open(run_dir)
    with observer("pages", run, _say).around(step, _say) as tell:
        try:
            with observer("stop", run, tell).around(step, tell) as watched:
                runner.do(run, step, watched)
        except Stopped as why:  # no failure, so that no page shows one
            return str(why)
    return None


def _say(line: str) -> None:
    progress.info("%s", line)


def telling() -> Callable[[str], None]:
    """Log a line as of the run around this call, from whatever thread: Prefect refuses what belongs to no run."""
    context = contextvars.copy_context()
    return lambda line: context.copy().run(progress.info, "%s", line)


def beside(run_dir: Path, step: Step) -> AbstractContextManager[None]:
    """Run ``step`` during the body of the context; it is no task of its own, so that cancelling stays quick."""
    return runner.beside(Run.open(run_dir), step, telling())


def run_step(run_dir: Path, step: Step, body: Callable[[Path, Step], str | None] = execute, like: str = "") -> None:
    """Run ``step`` as a task; before it starts, a Prefect server that is away is waited for.

    Args:
        run_dir: the folder it works on.
        step: what to do.
        body: what the task calls.
        like: verb whose settings it has; empty: its own.

    Raises:
        OaplError: the stage failed.
        Stopped: a rule of the run's settings ended it.
        ConcurrencySlotAcquisitionError: the server, which is asked for slots of the tags' limits, stayed away.
    """
    deadline = time.monotonic() + _SERVER_AWAY_S
    while True:
        try:
            if why := stage_task(step, body, like)(run_dir, step):
                raise Stopped(why)
            return
        except ConcurrencySlotAcquisitionError as error:
            if time.monotonic() > deadline:
                raise
            progress.info("%s: waits for Prefect's server (%s)", step.title, error.__cause__ or error)
            time.sleep(_ASK_AGAIN_S)


def stage_task(
    step: Step, body: Callable[[Path, Step], str | None] = execute, like: str = ""
) -> Task[[Path, Step], str | None]:
    """Make ``body`` a Prefect task with the settings of this step's stage, or of the one that it is ``like``."""
    settings = BY_VERB[like or step.verb]
    return task(
        name=step.verb,
        task_run_name=step.title,
        retries=settings.retries,
        retry_delay_seconds=exponential_backoff(RETRY_DELAY_S),
        retry_condition_fn=_is_worth_a_retry,
        tags=[f"oapl-{need}" for need in settings.needs],  # for tag limits; without one they only sort task runs
        cache_policy=NO_CACHE,
        persist_result=False,
    )(body)


async def _is_worth_a_retry(_task: Task[..., Any], _run: TaskRun, state: State[Any]) -> bool:
    error = await state.aresult(raise_on_failure=False)
    return isinstance(error, StageFailed | OSError) and not isinstance(error, Diverged)

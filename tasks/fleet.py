"""A stage on a machine of another work pool: a flow run of ``oapl-stage`` there, waited for here.

Reads the run folder's lock, whose token the other machine works for, and the stage's log, whose progress it forwards;
every machine sees both. Other shares of the stage (`fleet.shares`) are flow runs beside it, which take part in it by
the locks of its parts: one that dies is replaced, and none of them is waited for.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import cast
from uuid import UUID

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import FlowRun, State
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError
from prefect.states import Cancelling

from oapl_core import launch
from oapl_core.errors import ConfigError, DataError, Diverged, Interrupted, OaplError, SandboxError, StageFailed
from oapl_core.planning.plan import Step, helping_steps
from oapl_core.run_folder.lock import owner
from oapl_core.run_folder.object_store import below
from oapl_core.run_folder.run import Run

FLOW = "oapl-stage"
_ASK_EVERY_S = 1.0
_SERVER_AWAY_S = 600.0
_SAY_EVERY_S = 60.0
_LOOK_EVERY_S = 5.0
_REPLACED = 2
"""How often a share that failed is started again."""
_END_S = 10.0
_ERRORS: dict[str, type[OaplError]] = {kind.__name__: kind for kind in (ConfigError, DataError, Diverged, SandboxError)}

Tell = Callable[[str], None]


def run_stage(run: Run, step: Step, pool: str, tell: Tell) -> None:
    """Have a worker of ``pool`` do ``step`` and wait for its end; our own end, however it comes, ends the stage.

    Raises:
        OaplError: the stage's own one-line error; StageFailed if its machine or the server is gone.
    """
    with _started(run, step, pool, tell) as wait:
        wait()


@contextmanager
def beside(run: Run, step: Step, pool: str, tell: Tell) -> Iterator[None]:
    """As ``run_stage``, during the body of the context: the body's end waits for it, the body's failure ends it.

    That it failed is said, but not raised: the same work follows as a step.
    """
    with _started(run, step, pool, tell) as wait:
        yield
        try:
            wait()
        except OaplError as error:
            tell(str(error))


@contextmanager
def _started(run: Run, step: Step, pool: str, tell: Tell) -> Iterator[Callable[[], None]]:
    """A function that waits for the flow run, which is cancelled when the context is left before its end."""
    log = run.log(step.label)
    log.touch()
    forward = launch.following(log, log.stat().st_size, tell)
    name, _, queue = pool.partition("/")
    flow_run = _create(run, step, name, queue or None)
    tell(f"{step.title}: on work pool {pool}")
    with get_client(sync_client=True) as client, _sharing(run, step, pool, client, tell) as look:
        ended = False

        def forward_and_look() -> None:
            forward()
            look()

        def wait() -> None:
            nonlocal ended
            state = _wait(client, flow_run.id, pool, forward_and_look, tell)
            ended = True
            error = error_of(state, step, pool)
            if error:
                raise error

        try:
            yield wait
        finally:
            if not ended:
                _cancel(client, flow_run.id, tell)


@contextmanager
def joined(run: Run, step: Step, tell: Tell) -> Iterator[Tell]:
    """Machines without the run folder take part in ``step``, which is done here, where `[fleet]` says so.

    Yields what to tell progress to: with each line they are looked after.
    """
    pool = run.config.fleet.joining_pool(step.verb)
    if pool is None:
        yield tell
        return
    with get_client(sync_client=True) as client, _sharing(run, step, pool, client, tell) as look:
        # A sampling stage says something every two seconds: no thread is needed, and no client for it.
        def tell_and_look(line: str) -> None:
            tell(line)
            look()

        yield tell_and_look


@contextmanager
def _sharing(run: Run, step: Step, pool: str, client: SyncPrefectClient, tell: Tell) -> Iterator[Callable[[], None]]:
    """The other shares of ``step``; the yielded function replaces those that failed, the context's end ends them."""
    shares = helping_steps(step, run.config.fleet.shares(step.verb))
    name, _, queue = pool.partition("/")
    running = [_Share(share, _create(run, share, name, queue or None).id) for share in shares]
    looked = time.monotonic()

    def look(every_s: float = _LOOK_EVERY_S) -> None:
        nonlocal looked
        if not running or time.monotonic() - looked < every_s:
            return
        looked = time.monotonic()
        for share in running:
            error = share.error(client, pool) if share.is_alive else None
            if error is None:
                continue
            # a person's mistake is the same the next time; the first share will say so too
            if isinstance(error, StageFailed) and share.replaced < _REPLACED:
                share.flow_run, share.is_alive = _create(run, share.step, name, queue or None).id, True
                share.replaced += 1
                tell(f"{share.step.title}: {error}; started again ({share.replaced} of {_REPLACED})")
            else:
                tell(f"{share.step.title}: {error}; the others do its parts")

    try:
        yield look
        # everything is recorded: those who sampled the last parts end by themselves, others may still load an engine
        deadline = time.monotonic() + _END_S
        while time.monotonic() < deadline and any(share.is_alive for share in running):
            time.sleep(_ASK_EVERY_S)
            for share in running:
                share.error(client, pool)
    finally:
        for share in running:
            if share.is_alive:
                _cancel(client, share.flow_run, tell)


@dataclass
class _Share:
    """A flow run that helps."""

    step: Step
    flow_run: UUID
    replaced: int = 0
    is_alive: bool = True

    def error(self, client: SyncPrefectClient, pool: str) -> OaplError | None:
        """Why it ended, if it did and was not done; a server that is away says nothing."""
        try:
            state = client.read_flow_run(self.flow_run).state
        except httpx.HTTPError:
            return None
        self.is_alive = state is None or not state.is_final()
        return None if self.is_alive else error_of(cast("State[None]", state), self.step, pool)


def _create(run: Run, step: Step, pool: str, queue: str | None) -> FlowRun:
    holder = owner(run.root)
    assert holder, "whoever starts a stage holds the run folder"
    parameters = {"run_dir": str(run.root.resolve()), "step": asdict(step), "holder": holder.token}
    if run.config.fleet.joining_pool(step.verb):
        parameters["mirror"] = below(run.config.mirror or "", run.root.name)
    try:
        return cast(FlowRun, run_deployment(f"{FLOW}/{pool}", parameters=parameters, timeout=0, work_queue_name=queue))
    except ObjectNotFound:
        raise ConfigError(
            f"fleet.{step.verb.partition('.')[0]}: Prefect's server has no deployment {FLOW}/{pool}; "
            f"`make deploy POOLS={pool}` makes it (with PREFECT_API_URL set, also for `oapl run`)"
        ) from None
    except (httpx.HTTPError, PrefectHTTPStatusError) as error:
        raise StageFailed(f"{step.title}: could not be given to work pool {pool} ({error})") from None


def _wait(client: SyncPrefectClient, flow_run: UUID, pool: str, forward: Callable[[], None], tell: Tell) -> State[None]:
    """Its final state; a server that is away is waited for, a worker that is not there is told of."""
    heard = said = time.monotonic()
    while True:
        try:
            state = client.read_flow_run(flow_run).state
            heard = time.monotonic()
        except httpx.HTTPError as error:
            if time.monotonic() - heard > _SERVER_AWAY_S:
                raise StageFailed(f"Prefect's server is away ({error}); start it and run the same again") from None
            state = None
        forward()
        if state and state.is_final():
            return cast("State[None]", state)
        if state and not (state.is_running() or state.is_cancelling()) and time.monotonic() - said > _SAY_EVERY_S:
            said = time.monotonic()
            tell(f"waits for a worker: prefect worker start --pool {pool.partition('/')[0]}")
        time.sleep(_ASK_EVERY_S)


def error_of(state: State[None], step: Step, pool: str) -> OaplError | None:
    """What the final state of a stage's flow run means here; None if the stage is done."""
    if state.is_completed() and state.name == "Completed":
        return None
    message = state.message or state.name or "no message"
    if state.is_cancelled():
        return Interrupted(f"{step.title}: was cancelled on work pool {pool}; start the same again to continue")
    if state.name in _ERRORS:
        return _ERRORS[state.name](message)
    is_its_own = state.name == StageFailed.__name__
    return StageFailed(message if is_its_own else f"{step.title} on work pool {pool}: {message}")


def _cancel(client: SyncPrefectClient, flow_run: UUID, tell: Tell) -> None:
    """The stage notices anyway that nobody holds its run folder; this is quicker, and ends one that waits."""
    try:
        client.set_flow_run_state(flow_run, Cancelling())
    except (httpx.HTTPError, PrefectHTTPStatusError, ObjectNotFound) as error:
        tell(f"the stage's flow run was not cancelled ({error}); it ends with our lock")

"""Stages on the nodes of a Ray cluster, through Prefect's Ray task runner. The only door to Ray.

Reads and writes nothing itself: every node sees the run folder, and the ledger there says what is finished.
"""

import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from prefect.settings import PREFECT_API_URL

from oapl_core.errors import ConfigError
from oapl_core.planning.plan import Step
from oapl_core.settings.verifier import RayConfig
from tasks.stage import progress, stage_task

if TYPE_CHECKING:
    from prefect_ray import RayTaskRunner

_ANSWER_S = 10.0


@contextmanager
def beside_on_ray(run_dir: Path, steps: Sequence[Step], ray: RayConfig, cores: int) -> Iterator[None]:
    """``steps`` as Prefect tasks on a Ray cluster during the body of the context, with ``cores`` reserved for each.

    The body's end waits for them, its failure ends them. Ray starts those of a lost node again on another one. That one
    failed is said and recorded, but not raised: the same work follows as a step of the plan.

    Raises:
        ConfigError: the cluster does not answer, or its nodes could not reach Prefect's server.
    """
    from prefect_ray.context import remote_options

    with _connected(ray) as runner:
        with remote_options(num_cpus=cores, scheduling_strategy="SPREAD"):
            running = [runner.submit(stage_task(step), {"run_dir": run_dir.resolve(), "step": step}) for step in steps]
        progress.info("%d processes verify on Ray at %s; their output is in logs/", len(running), ray.address)
        try:
            yield
        except BaseException:
            _cancel(running)
            raise
        for step, future in zip(steps, running, strict=True):
            future.wait()
            if not future.state.is_completed():
                progress.info("%s: failed on Ray (%s); what is left follows", step.title, future.state.message)


@contextmanager
def _connected(settings: RayConfig) -> Iterator["RayTaskRunner[Any]"]:
    import ray
    from prefect_ray import RayTaskRunner

    runner = RayTaskRunner(settings.address, {"log_to_driver": False, "configure_logging": False})
    try:
        where = urlsplit(settings.address if "://" in settings.address else f"ray://{settings.address}")
        socket.create_connection((where.hostname or "", where.port or 6379), _ANSWER_S).close()
        runner.__enter__()
    except (OSError, RuntimeError, ValueError, SystemExit) as error:  # Ray itself would try for minutes, then exit
        raise ConfigError(
            f"verifier.ray.address: no Ray cluster answers at {settings.address} ({str(error).splitlines()[0]}); "
            "start one with `ray start --head`, or leave [verifier.ray] out"
        ) from None
    try:
        hosts = {str(node["NodeManagerAddress"]) for node in ray.nodes() if node["Alive"]}
        if len(hosts) > 1 and urlsplit(PREFECT_API_URL.value() or "").hostname in ("127.0.0.1", "localhost", None):
            raise ConfigError(
                f"verifier.ray: {len(hosts)} machines must reach Prefect's server, and this one's listens on the local "
                "host only; start `prefect server start --host 0.0.0.0` and set PREFECT_API_URL"
            )
        yield runner
    finally:
        runner.__exit__(None, None, None)


def _cancel(running: Sequence[Any]) -> None:
    """Kills the workers; the guard of each ends its process tree."""
    import ray

    for future in running:
        ray.cancel(future.wrapped_future, force=True)

"""The nodes of a running Ray cluster, as a runner: each process is a task there, with its cores and GPUs reserved.

The only door to Ray, which places tasks and starts those of a lost node again on another one. Nodes have this
environment, and see the run folder or its mirror. Reads the stage's log, whose progress it forwards.
"""

import importlib
import socket
import threading
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from oapl_core.errors import ConfigError, Held, Interrupted, OaplError, StageFailed
from oapl_core.launch import following
from oapl_core.planning.plan import Step
from oapl_core.planning.stages import BY_VERB, TRAINING
from oapl_core.run_folder.run import Run
from oapl_core.runner import Tell
from oapl_core.runner.crew import REPLACED
from oapl_core.settings.experiment import Experiment
from tasks.elsewhere import Order, carry_out

_ANSWER_S = 10.0
_ASK_EVERY_S = 1.0


class Ray:
    """A Ray cluster, as a runner (``oapl_core.runner``)."""

    def __init__(self, at: str | None) -> None:
        """``at``: HOST:PORT of the head node, or ray://HOST:PORT from outside of the cluster."""
        assert at, "settings ask for one"
        self._at = at

    def start(self, run: Run, step: Step, tell: Tell) -> "Task":
        """Submit the step as a task, which waits at the cluster until a node has room.

        Raises:
            ConfigError: the cluster does not answer, or Ray is not installed.
        """
        log = run.log(step.label)
        log.parent.mkdir(parents=True, exist_ok=True)
        log.touch()
        forward = following(log, log.stat().st_size, tell)  # before the process may write
        order, ray = Order.of(run, step), _CLUSTER.enter(self._at)
        try:
            gpus = gpus_of(run.config, step.verb) if ray.cluster_resources().get("GPU") else 0
            submit = ray.remote(_carry_out).options(
                name=step.title,
                num_cpus=cores_of(run.config, step.verb),
                num_gpus=gpus,
                max_retries=REPLACED,  # of a node or process that died; errors of the stage are not tried again here
                scheduling_strategy="SPREAD",
            )
            tell(f"{step.title}: on the Ray cluster at {self._at}" + (f", {gpus} GPUs" if gpus else ""))
            return Task(submit.remote(order), step, forward)
        except BaseException:
            _CLUSTER.leave()
            raise


class Task:
    """A step as a task of Ray's (``oapl_core.runner.Started``)."""

    def __init__(self, reference: Any, step: Step, forward: Callable[[], None]) -> None:
        self._reference, self._step, self._forward = reference, step, forward
        self._is_over = False

    def wait(self, patience_s: float | None = None) -> bool:
        """Wait for its result; one that waits for room is waited for."""
        import ray

        until = None if patience_s is None else time.monotonic() + patience_s
        while True:
            left = _ASK_EVERY_S if until is None else max(0.0, until - time.monotonic())
            ended, _ = ray.wait([self._reference], timeout=min(_ASK_EVERY_S, left))
            self._forward()
            if ended:
                error = self._error()
                self._close()
                if error:
                    raise error
                return True
            if until is not None and time.monotonic() >= until:
                return False

    def cancel(self) -> None:
        """Kill its worker; the guard there ends the process tree."""
        import ray

        if not self._is_over:
            ray.cancel(self._reference, force=True)
            self._close()

    def _error(self) -> OaplError | None:
        import ray
        from ray.exceptions import RayError, RayTaskError, TaskCancelledError

        try:
            ray.get(self._reference)
        except TaskCancelledError:
            return Interrupted(f"{self._step.title}: was cancelled on Ray; start the same again to continue")
        except RayTaskError as error:
            cause = error.cause
            if isinstance(cause, OaplError) and not isinstance(cause, Held):
                return cause
            return StageFailed(f"{self._step.title} on Ray: {cause}")
        except RayError as error:
            return StageFailed(f"{self._step.title} on Ray: {' '.join(str(error).split())[:300]}")
        return None

    def _close(self) -> None:
        self._is_over = True
        _CLUSTER.leave()


def _carry_out(order: Order) -> None:
    """Do a step on a node; what it says is in its log, in the run folder."""
    carry_out(order, lambda _line: None)


def gpus_of(config: Experiment, verb: str) -> int:
    """Count the GPUs that one process of ``verb`` uses: those of its engines, or its ranks."""
    if "gpu" not in BY_VERB[verb].needs:
        return 0
    return config.training.processes if verb == TRAINING.verb else config.engine_gpus(verb)


def cores_of(config: Experiment, verb: str) -> int:
    """Count the cores that one process of ``verb`` uses, as far as the settings know."""
    return (config.verifier.workers or 1) if "sandbox" in BY_VERB[verb].needs else 1


class _Connection:
    """This process's connection to a cluster; Ray has one at a time, which all tasks share."""

    def __init__(self) -> None:
        self._lock, self._users, self._address = threading.Lock(), 0, ""

    def enter(self, address: str) -> Any:
        """Connect, unless a task is there already; Ray's module.

        Raises:
            ConfigError: the cluster does not answer, tasks are at another one, or Ray is not installed.
        """
        try:
            ray = importlib.import_module("ray")
        except ModuleNotFoundError:
            raise ConfigError("runner = 'ray' needs Ray, which is not installed: install oapl[ray]") from None
        with self._lock:
            if self._users and address != self._address:
                raise ConfigError(f"fleet: {self._address} and {address}: one Ray cluster at a time can be used")
            if self._users == 0:
                _connect(ray, address)
            self._address, self._users = address, self._users + 1
        return ray

    def leave(self) -> None:
        """Disconnect, when the last task has ended."""
        import ray

        with self._lock:
            self._users -= 1
            if self._users == 0:
                ray.shutdown()


_CLUSTER = _Connection()


def _connect(ray: Any, address: str) -> None:
    try:
        where = urlsplit(address if "://" in address else f"ray://{address}")
        socket.create_connection((where.hostname or "", where.port or 6379), _ANSWER_S).close()
        ray.init(address, log_to_driver=False, configure_logging=False)
    except (OSError, RuntimeError, ValueError, SystemExit) as error:  # Ray itself would try for minutes, then exit
        raise ConfigError(
            f"fleet: no Ray cluster answers at {address} ({str(error).splitlines()[0]}); start one with "
            "`ray start --head`, or leave runner = 'ray' out"
        ) from None

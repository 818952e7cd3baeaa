"""Several engines on one machine: which devices each has, and the processes of all but the first.

The stage's own process is replica 0; it starts the others as ``generate ... --replica i``, each under a guard, so that
they end when it does. They share nothing but the run folder (``in_flight.py``: who samples which part), therefore a
machine more is the same command once more, and a dead replica's parts are sampled by those that remain. One that
dies is started again, twice at most.
"""

import os
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from oapl_core.errors import ConfigError, DataError, Interrupted
from oapl_core.launch import guarded
from oapl_core.progress import say
from oapl_core.settings.experiment import EngineConfig

_END_S = 10.0  # in which all of them together may end by themselves
_REPLACED = 2
"""How often a replica that failed is started again."""
_FINAL = tuple(kind.exit_code for kind in (ConfigError, DataError, Interrupted))
_GPU_DRIVERS = (Path("/dev/nvidiactl"), Path("/dev/kfd"))


class Others:
    """The processes of replicas 1, 2, ..."""

    def __init__(self, start: Callable[[int], subprocess.Popen[bytes]], logs: Mapping[int, Path]) -> None:
        """``start`` starts one of the replicas that ``logs`` names."""
        self._start, self._logs = start, logs
        self._living = {replica: start(replica) for replica in logs}
        self._replaced = Counter[int]()

    def report(self) -> None:
        """Say once of each replica that failed that it did, and start it again unless it would fail again."""
        for replica, process in list(self._living.items()):
            code = process.poll()
            if code is not None:
                del self._living[replica]
            if code:
                lines = self._logs[replica].read_text(errors="replace").splitlines()
                last = next((line.strip() for line in reversed(lines) if line.strip()), "it printed nothing")
                say(
                    f"replica {replica} ended with exit code {code}: {last[:300]} (see {self._logs[replica]}); "
                    f"its parts are sampled by the others{self._replace(replica, code)}"
                )

    def _replace(self, replica: int, code: int) -> str:
        """Start it again, unless a person must mend something first; what to say of it."""
        if code in _FINAL or self._replaced[replica] == _REPLACED:
            return ""
        self._replaced[replica] += 1
        self._living[replica] = self._start(replica)
        return f", and it is started again ({self._replaced[replica]} of {_REPLACED})"

    def wait(self) -> None:
        """Give them a moment to end by themselves when nothing is left to do; those still starting are ended."""
        for process in self._living.values():
            try:
                process.wait(_END_S / len(self._living))
            except subprocess.TimeoutExpired:
                return  # leaving the context ends this one and all after it


@contextmanager
def others(command: Sequence[str], count: int, log: Path) -> Iterator[Others]:
    """Replicas 1 to ``count`` - 1 of ``command``; leaving the context ends them, and so does our own death.

    Each writes a log of its own in the folder of ``log``, the name with ``_replica_1`` and so on.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    logs = {replica: log.with_name(f"{log.stem}_replica_{replica}.log") for replica in range(1, count)}
    with ExitStack() as stack:

        def start(replica: int) -> subprocess.Popen[bytes]:
            sink = stack.enter_context(logs[replica].open("ab"))
            return stack.enter_context(guarded([*command, "--replica", str(replica)], sink.fileno()))

        yield Others(start, logs)


def take_share(replica: int, config: EngineConfig) -> None:
    """Restrict this process to its replica's GPUs or, on a machine without any, to its share of the cores.

    To be called before the engine is imported. Ray places its workers itself.

    Raises:
        ConfigError: CUDA_VISIBLE_DEVICES names fewer GPUs than the replicas need.
    """
    if config.replicas == 1 or config.distributed_executor_backend == "ray":
        return
    if any(driver.exists() for driver in _GPU_DRIVERS):
        os.environ["CUDA_VISIBLE_DEVICES"] = gpus(replica, config, os.environ.get("CUDA_VISIBLE_DEVICES"))
    else:
        os.sched_setaffinity(0, cores(replica, config.replicas, sorted(os.sched_getaffinity(0))))


def gpus(replica: int, config: EngineConfig, visible: str | None) -> str:
    """What CUDA_VISIBLE_DEVICES is for one replica, of the GPUs that are ``visible`` (numbers or UUIDs; None: all).

    Raises:
        ConfigError: there are too few.
    """
    # Consecutive GPUs: those of one engine exchange activations, and neighbours are connected best as a rule.
    each = config.tensor_parallel_size * config.pipeline_parallel_size
    needed = each * config.replicas
    names = [str(number) for number in range(needed)] if visible is None else [v for v in visible.split(",") if v]
    if len(names) < needed:
        raise ConfigError(
            f"engine.replicas={config.replicas} of {each} GPUs need {needed}, but CUDA_VISIBLE_DEVICES names "
            f"{len(names)}; lower replicas, tensor_parallel_size or pipeline_parallel_size"
        )
    return ",".join(names[replica * each : (replica + 1) * each])


def cores(replica: int, replicas: int, allowed: Sequence[int]) -> list[int]:
    """One replica's cores: neighbours, every core once; where there are fewer cores than replicas they share."""
    # A core has one replica: an engine's threads meet after every layer, so one that must share its core delays them
    # all.
    if len(allowed) < replicas:
        return [allowed[replica % len(allowed)]]
    return [core for place, core in enumerate(allowed) if place * replicas // len(allowed) == replica]

"""Several engines on one machine: which devices each has, and the processes of all but the first.

The stage's own process is replica 0; it starts the others as ``generate ... --replica i``, each under a guard, so that
they end when it does. They share nothing but the run folder, where each claims parts (``run_folder/parts.py``).
Therefore a machine more is the same command once more, and a dead replica's parts are sampled by those that remain.
One that dies is started again, twice at most.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from oapl_core.errors import ConfigError
from oapl_core.launch import Process
from oapl_core.progress import say
from oapl_core.runner.crew import Crew
from oapl_core.settings.experiment import EngineConfig

_GPU_DRIVERS = (Path("/dev/nvidiactl"), Path("/dev/kfd"))


@contextmanager
def others(command: Sequence[str], count: int, log: Path) -> Iterator[Crew]:
    """Start replicas 1 to ``count`` - 1 of ``command``; leaving the context ends them, and so does our own death.

    Each writes a log of its own in the folder of ``log``, the name with ``_replica_1`` and so on.
    """
    log.parent.mkdir(parents=True, exist_ok=True)

    def start(replica: int) -> Process:
        own = log.with_name(f"{log.stem}_replica_{replica}.log")
        again = [*command, "--replica", str(replica)]
        return Process("its process", again, own, lambda _line: None, advice="")

    with Crew(start, {replica: f"replica {replica}" for replica in range(1, count)}, say, look_every_s=0) as crew:
        yield crew


def take_share(replica: int, config: EngineConfig) -> None:
    """Restrict this process to its replica's GPUs or, on a machine without any, to its share of the cores.

    To be called before the engine is imported. Ray places its workers itself.

    Raises:
        ConfigError: CUDA_VISIBLE_DEVICES names fewer GPUs than the replicas need.
    """
    if config.distributed_executor_backend == "ray":
        return
    if any(driver.exists() for driver in _GPU_DRIVERS):
        os.environ["CUDA_VISIBLE_DEVICES"] = gpus(replica, config, os.environ.get("CUDA_VISIBLE_DEVICES"))
    else:
        os.sched_setaffinity(0, cores(replica, config.replicas, sorted(os.sched_getaffinity(0))))


def gpus(replica: int, config: EngineConfig, visible: str | None) -> str:
    """Return CUDA_VISIBLE_DEVICES for one replica, of the GPUs that are ``visible`` (numbers or UUIDs; None: all).

    Raises:
        ConfigError: there are too few.
    """
    # Consecutive GPUs: those of one engine exchange activations, and neighbours are connected best as a rule.
    each = config.gpus
    needed = each * config.replicas
    names = [str(number) for number in range(needed)] if visible is None else [v for v in visible.split(",") if v]
    if len(names) < needed:
        raise ConfigError(
            f"engine.replicas={config.replicas} of {each} GPUs need {needed}, but CUDA_VISIBLE_DEVICES names "
            f"{len(names)}; lower replicas, tensor_parallel_size or pipeline_parallel_size"
        )
    return ",".join(names[replica * each : (replica + 1) * each])


def cores(replica: int, replicas: int, allowed: Sequence[int]) -> list[int]:
    """Return one replica's cores: neighbours, every core once; where there are fewer cores than replicas they share."""
    # A core has one replica: an engine's threads meet after every layer, so one that must share its core delays them
    # all.
    if len(allowed) < replicas:
        return [allowed[replica % len(allowed)]]
    return [core for place, core in enumerate(allowed) if place * replicas // len(allowed) == replica]

"""Ranks on several machines (nodes): which there are, and what starts torch's launcher on each of them.

`training.launcher` says who starts: `srun` in a Slurm job, or, with `env`, whoever starts one process a node
(Kubernetes' PyTorchJob, MPI, a loop over ssh). Each node runs ``node.py``; with `srun` its output comes here, so that
errors and progress are read as those of one machine. Reads the environment.
"""

import json
import os
import socket
import subprocess
import sys
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from oapl_core.devices import free_port
from oapl_core.errors import ConfigError
from oapl_core.run_folder.helping import holder_of
from oapl_core.run_folder.run import Run
from oapl_core.settings.training import TrainingConfig

_NUMBER = ("NODE_RANK", "PET_NODE_RANK", "SLURM_NODEID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "RANK")
_COUNT = ("NNODES", "PET_NNODES", "SLURM_JOB_NUM_NODES", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "WORLD_SIZE")


@dataclass(frozen=True)
class Call:
    """Call to the nodes of one training: the command that they start together."""

    name: str
    """Name of the call, another one each time."""
    ranks: tuple[int, ...]
    """Ranks of each node."""
    master: str
    """Address at which node 0 listens."""
    port: int
    holder: str | None
    """Token of the process that holds the run folder: nobody trains for one that is gone."""
    command: tuple[str, ...]
    """Module below ``oapl_core``, and its arguments after the run folder."""

    def text(self) -> str:
        """Write the call for a command line, or a file."""
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, text: str) -> "Call":
        """Read what ``text`` wrote."""
        read = json.loads(text)
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in read.items()}
        return cls(**values)


def call_file(root: Path) -> Path:
    """Return the file in which nodes that others start find the call."""
    return root / "run.nodes"


def start_command(run: Run, command: Sequence[str]) -> list[str]:
    """Return the command that starts ``command`` in every rank of every node; `training.launcher` is set.

    Raises:
        ConfigError: the environment does not say which nodes there are.
    """
    training, root = run.config.training, run.root.absolute()
    ranks, master = _places(training)
    master, port = os.environ.get("MASTER_ADDR") or master, int(os.environ.get("MASTER_PORT") or free_port(""))
    call = Call(uuid.uuid4().hex, ranks, master, port, holder_of(root), tuple(command))
    node = [sys.executable, "-m", "oapl_extras.nodes.node", str(root), call.text()]
    if training.launcher == "srun":
        count = len(ranks)
        # we are a step of the job already and lend our cores and GPUs; a node's ranks divide them among themselves
        shape = [f"--nodes={count}", f"--ntasks={count}", "--ntasks-per-node=1", "--overlap", "--cpu-bind=none"]
        return ["srun", *shape, "--mem=0", "--kill-on-bad-exit=1", "--input=none", *node]
    if call.holder is None:
        raise ConfigError(f"{root}: with `training.launcher` = 'env' the other nodes wait for `oapl run`; start that")
    return [*node, "--number", "0", "--announce"]


def _places(training: TrainingConfig) -> tuple[tuple[int, ...], str]:
    """Return the ranks of each node, and where the first one listens."""
    if training.launcher == "srun":
        listed = os.environ.get("SLURM_JOB_NODELIST")
        if not listed:
            raise ConfigError("`training.launcher` = 'srun' works inside a Slurm job: start with sbatch or salloc")
        shown = subprocess.run(["scontrol", "show", "hostnames", listed], capture_output=True, text=True, check=True)
        names = shown.stdout.split()
        return (training.processes,) * len(names), names[0]
    number = own_number()
    if number:
        raise ConfigError(
            f"this is node {number}: `oapl run` belongs to node 0; here start "
            "`python -m oapl_extras.nodes.node RUN_DIR`"
        )
    return (training.processes,) * _from_environment(_COUNT), socket.gethostname()


def own_number() -> int:
    """Return this node's number, from the environment.

    Raises:
        ConfigError: the environment does not have it.
    """
    return _from_environment(_NUMBER)


def _from_environment(names: Sequence[str]) -> int:
    for name in names:
        if os.environ.get(name, "").isdecimal():
            return int(os.environ[name])
    raise ConfigError(f"`training.launcher` = 'env' wants a number in one of {', '.join(names)}; none is set")

"""Ranks on several machines (nodes): which there are, and what starts torch's launcher on each of them.

`training.launcher` says who starts: `srun` in a Slurm job, `ssh` on the hosts of a file, or, with `env`, whoever starts
one process a node (Kubernetes' PyTorchJob, MPI, a loop of one's own). Each node runs ``node.py``, whose output comes
here, so that errors and progress are read as those of one machine. ``python -m oapl_core.training.nodes RUN_DIR CALL``
is what starts nodes by ssh. Reads the hostfile and the environment.
"""

import json
import os
import shlex
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from oapl_core.errors import ConfigError
from oapl_core.run_folder.helping import holder_of
from oapl_core.run_folder.run import Run
from oapl_core.settings.training import TrainingConfig

_NUMBER = ("NODE_RANK", "PET_NODE_RANK", "SLURM_NODEID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "RANK")
_COUNT = ("NNODES", "PET_NNODES", "SLURM_JOB_NUM_NODES", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "WORLD_SIZE")
_STAY = ("CUDA_VISIBLE_DEVICES", "HOSTNAME", "OLDPWD", "PWD", "SHLVL", "SLURM_", "SSH_", "TMPDIR", "XDG_")
"""How names of variables begin that say something of one machine and are not sent by ssh."""
_CODE_ROOT = Path(__file__).resolve().parents[2]
_SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ServerAliveInterval=15")
_LAST_WORDS_S = 5.0
"""How long nodes may take to say how they lost one of them; then they are ended."""
_END_S = 15.0
"""How long a node may take to end its ranks; its guard kills them after 5 s."""


@dataclass(frozen=True)
class Call:
    """What the nodes of one training start together."""

    name: str
    """Differs each time."""
    ranks: tuple[int, ...]
    """Of each node."""
    hosts: tuple[str, ...]
    """As ssh knows them; empty where others start the nodes."""
    master: str
    """Where node 0 listens."""
    port: int
    holder: str | None
    """Token of the process that holds the run folder: nobody trains for one that is gone."""
    command: tuple[str, ...]
    """Module below ``oapl_core``, and its arguments after the run folder."""

    def text(self) -> str:
        """For a command line, or a file."""
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, text: str) -> "Call":
        """Read what ``text`` wrote."""
        read = json.loads(text)
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in read.items()}
        return cls(**values)


def call_file(root: Path) -> Path:
    """Where nodes that nobody here starts find the call."""
    return root / "run.nodes"


def start_command(run: Run, command: Sequence[str]) -> list[str]:
    """What starts ``command`` in every rank of every node; `training.launcher` is set, or a hostfile.

    Raises:
        ConfigError: hostfile or environment do not say which nodes there are.
    """
    training, root = run.config.training, run.root.absolute()
    ranks, hosts, master = _places(training)
    master, port = os.environ.get("MASTER_ADDR") or master, int(os.environ.get("MASTER_PORT") or _port())
    call = Call(uuid.uuid4().hex, ranks, hosts, master, port, holder_of(root), tuple(command))
    node = [sys.executable, "-m", "oapl_core.training.node", str(root), call.text()]
    if training.launcher == "srun":
        count = len(ranks)
        # we are a step of the job already and lend our cores and GPUs; a node's ranks divide them among themselves
        shape = [f"--nodes={count}", f"--ntasks={count}", "--ntasks-per-node=1", "--overlap", "--cpu-bind=none"]
        return ["srun", *shape, "--mem=0", "--kill-on-bad-exit=1", "--input=none", *node]
    if training.launcher == "env":
        if call.holder is None:
            raise ConfigError(
                f"{root}: with `training.launcher` = 'env' the other nodes wait for `oapl run`; start that"
            )
        return [*node, "--number", "0", "--announce"]
    return [sys.executable, "-m", "oapl_core.training.nodes", str(root), call.text()]


def _places(training: TrainingConfig) -> tuple[tuple[int, ...], tuple[str, ...], str]:
    """Ranks of each node, hosts for ssh, and where the first one listens."""
    if training.launcher == "srun":
        listed = os.environ.get("SLURM_JOB_NODELIST")
        if not listed:
            raise ConfigError("`training.launcher` = 'srun' works inside a Slurm job: start with sbatch or salloc")
        shown = subprocess.run(["scontrol", "show", "hostnames", listed], capture_output=True, text=True, check=True)
        names = shown.stdout.split()
        return (training.processes,) * len(names), (), names[0]
    if training.launcher == "env":
        number = own_number()
        if number:
            raise ConfigError(
                f"this is node {number}: `oapl run` belongs to node 0; start "
                "`python -m oapl_core.training.node RUN_DIR` here"
            )
        count = _from_environment(_COUNT)
        return (training.processes,) * count, (), socket.gethostname()
    assert training.hostfile is not None
    slots = _read_hostfile(training.hostfile, training.processes)
    return tuple(n for _, n in slots), tuple(host for host, _ in slots), slots[0][0].rpartition("@")[2]


def own_number() -> int:
    """Which node this is, from the environment.

    Raises:
        ConfigError: nothing says so.
    """
    return _from_environment(_NUMBER)


def _from_environment(names: Sequence[str]) -> int:
    for name in names:
        if os.environ.get(name, "").isdecimal():
            return int(os.environ[name])
    raise ConfigError(f"`training.launcher` = 'env' wants a number in one of {', '.join(names)}; none is set")


def _read_hostfile(path: Path, ranks: int) -> list[tuple[str, int]]:
    if not path.is_file():
        raise ConfigError(f"`training.hostfile`: {path} is not a file; one line `HOST slots=GPUS` a host")
    found = []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        host, *rest = line.partition("#")[0].split() or [""]
        slots = rest[0].removeprefix("slots=") if rest else str(ranks)
        if not host:
            continue
        if len(rest) > 1 or not slots.isdecimal() or slots == "0" or host.startswith("-"):
            raise ConfigError(f"{path}, line {number}: {line.strip()!r} is not `HOST slots=GPUS`")
        found.append((host, int(slots)))
    if not found:
        raise ConfigError(f"`training.hostfile`: {path} names no host; one line `HOST slots=GPUS` a host")
    return found


def _port() -> int:
    """Free here, so most likely on node 0, too."""
    with socket.socket() as server:
        server.bind(("", 0))
        return int(server.getsockname()[1])


def main(root: str, text: str) -> int:
    """Start every node by ssh, and end all when one fails; returns the first failure's code."""
    call = Call.of(text)
    sent = json.dumps({k: v for k, v in os.environ.items() if not k.startswith(_STAY)})
    nodes = []
    for number, host in enumerate(call.hosts):
        command = [sys.executable, "-m", "oapl_core.training.node", root, text, "--number", str(number), "--tethered"]
        remote = (
            f"cd {shlex.quote(str(Path.cwd()))} && exec {shlex.join(['env', f'PYTHONPATH={_CODE_ROOT}', *command])}"
        )
        node = subprocess.Popen([*_SSH, host, remote], stdin=subprocess.PIPE, text=True)
        assert node.stdin is not None
        nodes.append(node)
        with suppress(BrokenPipeError):  # then its exit code tells
            node.stdin.write(sent + "\n")
            node.stdin.flush()  # and stays open: it closes with us, and the node ends
    while not any(codes := [node.poll() for node in nodes]) and None in codes:
        time.sleep(0.1)
    failed = next(((host, code) for host, code in zip(call.hosts, codes, strict=True) if code), None)
    _end(nodes)
    if failed is None:
        return 0
    sys.stderr.write(f"node {failed[0]} ended with code {failed[1]}\n")
    return failed[1]


def _end(nodes: Sequence["subprocess.Popen[str]"]) -> None:
    deadline = time.monotonic() + _LAST_WORDS_S
    while any(node.poll() is None for node in nodes) and time.monotonic() < deadline:
        time.sleep(0.1)
    for node in nodes:
        assert node.stdin is not None
        with suppress(BrokenPipeError):
            node.stdin.close()
    for node in nodes:
        try:
            node.wait(_END_S)
        except subprocess.TimeoutExpired:
            node.kill()


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))

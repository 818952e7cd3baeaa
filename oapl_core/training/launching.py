"""Starts the ranks of a round and waits for them: torch's launcher here, or on each of several nodes (``nodes.py``).

Reads what the ranks say on standard error and passes it on; makes the file that asks them to stop. When a rank is lost
(killed, out of memory, its machine gone) the launcher ends the others, and one line says which it was. A guard of their
own ends the ranks of this machine when the process that launched them dies, also where no orchestrator guards it.
"""

import io
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterable

from oapl_core import plugins
from oapl_core.errors import Interrupted, StageFailed
from oapl_core.launch import guarded
from oapl_core.run_folder.run import Run
from oapl_core.stage import ERROR_PREFIX
from oapl_core.training.interruption import INTERRUPTED, listening
from oapl_core.training.job import Job

_LOST = re.compile(r"failed \(exitcode: (?P<code>-?\d+)\) local_rank: (?P<rank>\d+)")  # torch.distributed.run
_NODE = re.compile(r"^node (?P<node>\S+) ended with code (?P<code>-?\d+)$")  # node.py, and nodes.py of one that is away
_LAUNCHER_CODES = (1, 128 + signal.SIGTERM)
"""How torch's launcher ends where a rank fails, and a node that is asked to."""


def rank_command(run: Run, verb: str, *arguments: str) -> list[str]:
    """Return the command that starts ``verb`` in every rank; ``arguments`` follow the run folder.

    Raises:
        ConfigError: the environment does not say which of several machines there are.
    """
    training = run.config.training
    if training.launcher:
        # by name: several machines are an extra, and a cluster may have a launcher of its own
        command: list[str] = plugins.resolve("launcher", training.launcher)(run, (verb, *arguments))
        return command
    launcher = ["oapl_core.training.one_machine", f"--nproc-per-node={training.processes}", "-m"]
    return [sys.executable, "-m", *launcher, f"oapl_core.{verb}", str(run.root.absolute()), *arguments]


def launch_ranks(job: Job) -> None:
    """Run every rank to its end.

    Raises:
        SystemExit: a rank failed and has said why in its error line, which must stay the last one.
        StageFailed: a rank was lost.
        Interrupted: someone asked to stop; the state is saved.
    """
    stop_file, environment = job.stop_file, dict(os.environ)
    if job.training.has_nodes:  # each counts its own cores; and srun must not write in front of lines
        environment.pop("SLURM_LABELIO", None)
    else:
        environment.setdefault("OMP_NUM_THREADS", str(threads_of(job.training.processes)))

    def ask() -> None:
        stop_file.touch()

    with listening(ask):
        # A scheduler's SIGUSR1 goes to every process of the job: the launcher must survive it, the ranks answer it.
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        with guarded(rank_command(job.run, *job.command), errors=subprocess.PIPE, environment=environment) as process:
            signal.signal(signal.SIGUSR1, lambda *_: ask())
            assert process.stderr is not None
            errors = _heard(io.TextIOWrapper(process.stderr, errors="replace"))
            code = process.wait()
    stop_file.unlink(missing_ok=True)
    if code:
        _complain(errors, code)


def threads_of(ranks: int) -> int:
    """Count the threads that each of so many ranks on this machine computes with."""
    return max(1, len(os.sched_getaffinity(0)) // ranks)


def _heard(lines: Iterable[str]) -> list[str]:
    """Pass lines on to our own standard error; returns those that tell how a rank ended."""
    kept = []
    for line in lines:
        sys.stderr.write(line)
        sys.stderr.flush()
        if line.startswith(ERROR_PREFIX) or _LOST.search(line) or _NODE.match(line):
            kept.append(line.strip())
    return kept


def _complain(lines: list[str], code: int) -> None:
    errors = [line.removeprefix(ERROR_PREFIX) for line in lines if line.startswith(ERROR_PREFIX)]
    ends = [match for line in lines if (match := _LOST.search(line))]
    nodes = [match for line in lines if (match := _NODE.match(line))]
    lost = [node for node in nodes if int(node["code"]) not in _LAUNCHER_CODES]
    if lost:  # its ranks, or those that waited for them, may have been asked to stop: that was nobody's wish
        raise StageFailed(
            f"node {lost[0]['node']} was lost (code {lost[0]['code']}) and the others were ended; run the same command "
            "again to resume after the last saved step"
        )
    if errors and errors[-1].startswith(INTERRUPTED):
        raise Interrupted(errors[-1])
    if errors:
        # a rank that only lost the others ends with 1, perhaps before the one that said why
        codes = [int(end["code"]) for end in ends if int(end["code"]) > 0]
        raise SystemExit(next((one for one in codes if one != 1), codes[0] if codes else code))
    what = f"the ranks' launcher ended with code {code}"
    if ends:
        number = int(ends[0]["code"])
        how = f"was killed by signal {-number}" if number < 0 else f"exited with code {number}"
        where = f" of node {nodes[0]['node']}" if nodes else ""
        what = f"rank {ends[0]['rank']}{where} {how}"
    raise StageFailed(
        f"{what} and the others were ended (out of memory is the usual cause); run the same command again to resume "
        "after the last saved step"
    )

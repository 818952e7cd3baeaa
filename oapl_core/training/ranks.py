"""Starts the ranks of a round and waits for them: torch's launcher on this machine, DeepSpeed's with a hostfile.

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

from oapl_core.errors import ConfigError, Interrupted, StageFailed
from oapl_core.launch import guarded
from oapl_core.run_folder.run import Run
from oapl_core.stage import ERROR_PREFIX
from oapl_core.training.interruption import INTERRUPTED, listening
from oapl_core.training.job import Job

_LOST = (
    re.compile(r"failed \(exitcode: (?P<code>-?\d+)\) local_rank: (?P<rank>\d+)"),  # torch.distributed.run
    re.compile(r"exits with return code = (?P<code>-?\d+)"),  # DeepSpeed
)


def rank_command(run: Run, verb: str, *arguments: str) -> list[str]:
    """What starts ``verb`` in every rank; ``arguments`` follow the run folder.

    With ``training.hostfile`` DeepSpeed's launcher starts as many ranks on each host as the file's slots say, by pdsh
    and password-less ssh; every host must have this environment and see the run folder under the same path.

    Raises:
        ConfigError: the hostfile is not there.
    """
    training = run.config.training
    module = [f"oapl_core.{verb}", str(run.root.absolute()), *arguments]
    if training.hostfile is None:
        launcher = ["torch.distributed.run", "--standalone", f"--nproc-per-node={training.processes}", "-m"]
        return [sys.executable, "-m", *launcher, *module]
    if not training.hostfile.is_file():
        raise ConfigError(f"`training.hostfile`: {training.hostfile} is not a file; one line `HOST slots=GPUS` a host")
    launcher = ["deepspeed.launcher.runner", "--hostfile", str(training.hostfile), "--module", "--no_local_rank"]
    return [sys.executable, "-m", *launcher, *module]


def launch_ranks(job: Job) -> None:
    """Run every rank to its end.

    Raises:
        SystemExit: a rank failed and has said why in its error line, which must stay the last one.
        StageFailed: a rank was lost.
        Interrupted: someone asked to stop; the state is saved.
    """
    stop_file, threads = job.stop_file, max(1, len(os.sched_getaffinity(0)) // job.training.processes)
    environment = {"OMP_NUM_THREADS": str(threads), **os.environ}

    def ask() -> None:
        stop_file.touch()

    with listening(ask):
        # A scheduler's SIGUSR1 goes to every process of the job: the launcher must survive it, the ranks answer it.
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        with guarded(rank_command(job.run, *job.command), errors=subprocess.PIPE, environment=environment) as process:
            signal.signal(signal.SIGUSR1, lambda *_: ask())
            assert process.stderr is not None
            said = _heard(io.TextIOWrapper(process.stderr, errors="replace"))
            code = process.wait()
    stop_file.unlink(missing_ok=True)
    if code:
        _complain(said, code)


def _heard(lines: Iterable[str]) -> list[str]:
    """Pass lines on to our own standard error; returns those that tell how a rank ended."""
    said = []
    for line in lines:
        sys.stderr.write(line)
        sys.stderr.flush()
        if line.startswith(ERROR_PREFIX) or any(pattern.search(line) for pattern in _LOST):
            said.append(line.strip())
    return said


def _complain(said: list[str], code: int) -> None:
    errors = [line.removeprefix(ERROR_PREFIX) for line in said if line.startswith(ERROR_PREFIX)]
    ends = [match for line in said for pattern in _LOST if (match := pattern.search(line))]
    if errors and errors[-1].startswith(INTERRUPTED):
        raise Interrupted(errors[-1])
    if errors:
        raise SystemExit(int(ends[0]["code"]) if ends and int(ends[0]["code"]) > 0 else code)
    what = f"the ranks' launcher ended with code {code}"
    if ends:
        number = int(ends[0]["code"])
        how = f"was killed by signal {-number}" if number < 0 else f"exited with code {number}"
        name = ends[0].groupdict().get("rank")
        what = f"rank {name} {how}" if name is not None else f"a rank {how}"
    raise StageFailed(
        f"{what} and the others were ended (out of memory is the usual cause); run the same command again to resume "
        "after the last saved step"
    )

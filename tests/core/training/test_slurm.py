"""Ranks on two nodes of Slurm: two slurmd with cons_tres and task/affinity here (Debian: slurm-wlm, munge)."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from oapl_core.run_folder.run import Run
from tests.core.training.test_nodes import ORCHESTRATOR
from tests.core.training.test_resume import prepare, states, steps_saved, weights_gap

PROGRAMS = ("munged", "slurmctld", "slurmd")
FOUND = [shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") for name in PROGRAMS]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not all(FOUND) or os.getuid() != 0, reason="needs Slurm's daemons, and root to start them"),
]
CONFIG = """
ClusterName=two
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort=16917
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdParameters=config_overrides
NodeName=n1 NodeAddr=127.0.0.1 Port=17101 CPUs=2 State=UNKNOWN
NodeName=n2 NodeAddr=127.0.0.1 Port=17102 CPUs=2 State=UNKNOWN
PartitionName=all Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
"""
JOB = '#!/bin/sh\nexec srun --nodes=1 --ntasks=1 --overlap "$@"\n'


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Two idle nodes; MASTER_ADDR stands for names that nothing resolves here."""
    (tmp_path / "state").mkdir()
    (tmp_path / "slurm.conf").write_text(CONFIG.format(folder=tmp_path, host=os.uname().nodename.partition(".")[0]))
    (tmp_path / "key").write_bytes(os.urandom(128))
    (tmp_path / "key").chmod(0o600)
    (tmp_path / "job.sh").write_text(JOB)
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    munged, slurmctld, slurmd = map(str, FOUND)
    files = [f"--{name}={tmp_path / f'munge.{name}'}" for name in ("socket", "pid-file", "log-file", "seed-file")]
    daemons = [
        [munged, "--force", "--foreground", f"--key-file={tmp_path / 'key'}", *files],
        [slurmctld, "-D"],
        [slurmd, "-D", "-N", "n1"],
        [slurmd, "-D", "-N", "n2"],
    ]
    with ExitStack() as stack, (tmp_path / "daemons.log").open("wb") as log:
        for command in daemons:
            process = stack.enter_context(subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True))
            stack.callback(process.terminate)
            time.sleep(1)
        deadline = time.monotonic() + 30
        while slurm("sinfo", "-h", "-t", "idle", "-o", "%D") != "2":
            assert time.monotonic() < deadline, (tmp_path / "daemons.log").read_text()
            time.sleep(0.5)
        yield
        slurm("scancel", "--user=root")


def slurm(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


def submit(run: Run, folder: Path) -> tuple[str, Path]:
    """The round as a job on both nodes; its number and what it prints."""
    out = folder / "job.out"
    command = [str(folder / "job.sh"), sys.executable, "-c", ORCHESTRATOR, str(run.root)]
    return slurm("sbatch", "--parsable", "--nodes=2", "--exclusive", f"--output={out}", *command), out


def wait_for_end(job: str) -> None:
    deadline = time.monotonic() + 120
    while slurm("squeue", "-h", "-j", job):
        assert time.monotonic() < deadline
        time.sleep(0.5)


@pytest.mark.usefixtures("cluster")
def test_a_job_on_two_nodes_is_warned_saves_continues_and_trains_the_weights_of_one_rank(
    trained: Run, tmp_path: Path, sharp_model: Path, many_rows: list[dict[str, Any]]
) -> None:
    run = prepare(tmp_path, sharp_model, many_rows, launcher="srun")
    job, out = submit(run, tmp_path)
    deadline = time.monotonic() + 120
    while steps_saved(run) < 3:
        assert time.monotonic() < deadline, out.read_text()
        time.sleep(0.05)
    slurm("scancel", "--signal=USR1", job)
    wait_for_end(job)
    assert "error: interrupted after step " in out.read_text()
    assert [entry.exit_code for entry in run.ledger.stages()] == [130]
    assert states(run)
    job, out = submit(run, tmp_path)
    wait_for_end(job)
    assert "723/723 sequences" in out.read_text().splitlines()[-1]
    assert weights_gap(run, trained) < 2e-5

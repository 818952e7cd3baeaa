"""Trajectories with sessions of the sandbox under kill -9: each is there once and whole, and no session is left."""

import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from oapl_core.run_folder.run import Run
from oapl_core.tables import ROLLOUTS, read_table
from tests.processes import kill_alone, started
from tests.speaking_sampler import speaking_run
from tests.whole_run import made_more_than_once

SUMS = [f"{n} + {n + 1} = ?" for n in range(40, 52)]


def made(folder: Path) -> Run:
    folder.mkdir()
    environment = {"function": "python", "syntax": "fence", "settings": {"memory_mb": 256, "servers": 1}}
    return speaking_run(folder, SUMS, environment=environment, sampling={"flush_s": 0.02})


def start(run: Run, root: Path) -> "psutil.Popen":
    command = [sys.executable, "-m", "tests.core.rollouts.slow_turns", str(run.root), "--round", "0"]
    with (run.root / "output.txt").open("ab") as output:
        return psutil.Popen(command, cwd=root, stdout=output, stderr=output)


def content(run: Run) -> list[dict[str, Any]]:
    """Every row without the clock."""
    parts = sorted(run.rollouts(0).glob("part-*.parquet"))
    rows = [row for part in parts for row in read_table(part, ROLLOUTS).to_pylist()]
    for row in rows:
        del row["sampled_at"], row["run"]
        for call in row["tool_calls"]:
            del call["seconds"]
    return rows


@pytest.mark.slow
@pytest.mark.parametrize("kills", [8])
def test_killed_at_random_moments_each_trajectory_is_there_once(
    kills: int, tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    undisturbed = made(tmp_path / "whole")
    assert start(undisturbed, root).wait() == 0
    run, draw = made(tmp_path / "killed"), random.Random(5)
    monkeypatch.setenv("OAPL_TEST_ANSWER_S", "0.1")
    below = set[psutil.Process]()
    for _ in range(kills):
        process = start(run, root)
        # not before it samples: what is killed earlier has nothing to lose
        deadline = time.monotonic() + 60
        while not list(run.rollouts(0).glob(".in_flight/*/*.turns")) and time.monotonic() < deadline:
            time.sleep(0.02)
            if process.poll() is not None:
                break
        time.sleep(draw.uniform(0.0, 1.5))
        below |= set(process.children(recursive=True))
        kill_alone(process)
    _, alive = psutil.wait_procs(below, timeout=30)
    assert below
    assert not alive, f"left behind: {alive}"
    monkeypatch.setenv("OAPL_TEST_ANSWER_S", "0.01")
    assert start(run, root).wait() == 0, (run.root / "output.txt").read_text()[-2000:]
    assert made_more_than_once(run) == []
    assert content(run) == content(undisturbed)
    assert not (run.rollouts(0) / ".in_flight").exists()


def test_a_stage_that_is_killed_in_a_tool_leaves_no_session(tmp_path: Path, root: Path) -> None:
    code = (
        "from oapl_core.environments.python_session import PythonSession\n"
        "from oapl_core.environments.protocol import Action, ToolCall\n"
        "made = PythonSession(memory_mb=256, servers=1)\nmade.python('x = 1')\nprint('ready', flush=True)\n"
        "made.python('import time; time.sleep(60)')\n"
    )
    with started([sys.executable, "-c", code], cwd=root, stdout=subprocess.PIPE) as process:
        assert process.stdout and process.stdout.readline() == b"ready\n"
        below = psutil.Process(process.pid).children(recursive=True)
        assert len(below) >= 4  # watcher, gatekeeper, server, keeper, session
        kill_alone(process)
    _, alive = psutil.wait_procs(below, timeout=30)
    assert not alive

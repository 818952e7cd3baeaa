"""Generation under kill -9: of the stage, of a replica, of a guard, again and again; and on a disk that is full.

After any number of kills the union of the parts holds each (problem, sample) exactly once, as an undisturbed run has
them, and no part that was recorded is sampled again. The same with the real engine is marked slow.
"""

import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import psutil
import pytest

from oapl_core.rollouts.generate import generate
from oapl_core.run_folder.run import Run
from oapl_core.tables import ROLLOUTS, read_table
from tests.core.rollouts.engine_session import sampling_run
from tests.core.rollouts.slow_sampling import COMMAND
from tests.processes import kill
from tests.sampling_run import MadeUpSampler, made_up_model, make_run
from tests.tiny_model import write_tiny_model
from tests.whole_run import made_more_than_once

PROBLEMS, GROUP, REPLICAS, KILLS = 60, 4, 3, 20
A_FEW_KILLS = 4
_LATE_S = 3.0
"""A busy machine starts guards and replicas so late; then something else is killed."""
REAL = (sys.executable, "-m", "oapl_core.rollouts.generate")


def content(run: Run, *without: str) -> list[dict[str, Any]]:
    """Every row of every part, in order, without the clock."""
    parts = sorted(run.rollouts(0).glob("part-*.parquet"))
    rows = [row for part in parts for row in read_table(part, ROLLOUTS).to_pylist()]
    return [{k: v for k, v in row.items() if k not in ("sampled_at", *without)} for row in rows]


@pytest.fixture(autouse=True)
def _none_is_left() -> Iterator[None]:
    yield
    while Stage.all:
        kill(Stage.all.pop())


class Stage:
    """A generate process that is started as often as it is killed, and everything below it; none outlives its test."""

    all: ClassVar[list[psutil.Popen]] = []

    def __init__(self, command: tuple[str, ...], run: Run, root: Path) -> None:
        self._command, self._root = [*command, str(run.root), "--round", "0"], root
        self._output = run.root / "output.txt"
        self.start()

    def start(self) -> None:
        with self._output.open("ab") as output:
            self.process = psutil.Popen(self._command, cwd=self._root, stdout=output, stderr=output)
        self.all.append(self.process)

    def start_if_over(self) -> None:
        """Start it again once it ended."""
        if self.process.poll() is not None:
            assert self.process.returncode in (0, -9), "it ends well or by our hand"
            self.start()

    def kill(self, who: str, draw: random.Random) -> bool:
        """SIGKILL to the stage, to one of its guards or to one of its replicas; False if there is none."""
        named = {"stage": [self.process]}
        below = []
        for process in self.process.children(recursive=True):
            with suppress(psutil.NoSuchProcess):  # it ended after it was listed
                if process.status() != "zombie":
                    below.append((process, " ".join(process.cmdline())))
        named["guard"] = [p for p, line in below if "oapl_core.guard" in line]
        named["replica"] = [p for p, line in below if "--replica" in line and "oapl_core.guard" not in line]
        if not named[who]:
            return False
        draw.choice(named[who]).kill()
        if who == "stage":
            self.process.wait()
            for process, _ in below:
                process.wait(20)  # what is below ends with it
        return True


def disturb(stage: Stage, kills: int, longest_s: float) -> Counter[str]:
    """Kill at so many random moments, or as soon as what is to be killed is there; starts the stage when it is over."""
    draw, killed = random.Random(20), Counter[str]()
    while killed.total() < kills:
        time.sleep(draw.uniform(0.0, longest_s))
        who = draw.choice(["stage", "replica", "guard"])
        latest = time.monotonic() + _LATE_S
        stage.start_if_over()
        while not (hit := stage.kill(who, draw)) and time.monotonic() < latest:
            time.sleep(0.02)
            stage.start_if_over()
        killed[who] += hit
    return killed


def conclude(stage: Stage, run: Run) -> None:
    """Let it end, and see that nothing is left of the killing."""
    if stage.process.poll() is None:
        stage.process.wait()
    stage.start()
    assert stage.process.wait() == 0
    assert not (run.rollouts(0) / ".in_flight").exists()
    assert made_more_than_once(run) == [], "a recorded part was sampled again"


@pytest.mark.slow
@pytest.mark.parametrize("kills", [A_FEW_KILLS, KILLS])
def test_killed_at_random_moments_each_answer_is_there_once(
    kills: int, tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = made_up_model(tmp_path / "model")
    prompts = {"train": [[5, i] for i in range(PROBLEMS)], "validation": [[6]], "heldout": [[7]]}
    sampling = {"group_size": GROUP, "max_tokens": 12, "problems_per_part": 5, "flush_s": 0.05}
    settings: dict[str, Any] = {"sampling": sampling, "engine": {"replicas": REPLICAS}}
    run = make_run(tmp_path, model, prompts, **settings)
    monkeypatch.setenv("OAPL_TEST_ANSWER_S", "0.2")
    stage = Stage(COMMAND, run, root)
    killed = disturb(stage, kills, longest_s=0.9)
    assert kills == A_FEW_KILLS or min(killed.values()) > 2, killed
    monkeypatch.setenv("OAPL_TEST_ANSWER_S", "0")
    conclude(stage, run)
    whole = make_run(tmp_path / "whole", model, prompts, sampling=sampling)
    generate(whole, 0, MadeUpSampler)
    assert content(run) == content(whole)


def test_three_processes_share_the_parts_and_sample_each_answer_once(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = made_up_model(tmp_path / "model")
    prompts = {"train": [[5, i] for i in range(PROBLEMS)], "validation": [[6]], "heldout": [[7]]}
    run = make_run(tmp_path, model, prompts, engine={"replicas": REPLICAS})
    monkeypatch.setenv("OAPL_TEST_ANSWER_S", "0.1")
    stage = Stage(COMMAND, run, root)
    assert stage.process.wait() == 0
    outputs = [run.root / "output.txt", *(run.root / "logs").glob("*_replica_*.log")]
    answered = [[line for line in o.read_text().splitlines() if line.startswith("answered")] for o in outputs]
    assert len(answered) == REPLICAS
    assert all(answered), "each of them did some of it"
    assert set(Counter(line for lines in answered for line in lines).values()) == {1}
    whole = make_run(tmp_path / "whole", model, prompts)
    generate(whole, 0, MadeUpSampler)
    assert content(run) == content(whole), "whoever samples an answer, it is the same"
    assert "replica" not in outputs[0].read_text(), "nothing failed"


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.skipif(find_spec("vllm") is None, reason="the engine is not installed")
def test_two_real_engines_killed_at_twenty_random_moments_end_as_one_undisturbed(tmp_path: Path, root: Path) -> None:
    model = write_tiny_model(tmp_path / "model", seed=1, sharpness=8)
    whole = sampling_run(tmp_path / "whole", model)
    run = sampling_run(tmp_path / "killed", model, replicas=2, max_num_seqs=4)  # long enough to be killed in
    generate_in_a_process(whole, root)
    stage = Stage(REAL, run, root)
    killed = disturb(stage, KILLS, longest_s=11.0)
    assert killed.total() == KILLS
    conclude(stage, run)
    assert content(run, "run", "logprobs") == content(whole, "run", "logprobs")


def generate_in_a_process(run: Run, root: Path) -> None:
    subprocess.run([*REAL, str(run.root), "--round", "0"], cwd=root, check=True, stdout=subprocess.DEVNULL)


def may_mount() -> bool:
    """Whether a private file system can be made here: namespaces are allowed to this user."""
    command = ["unshare", "-Urm", "sh", "-c", "mount -t tmpfs -o size=1m none /mnt"]
    return shutil.which("unshare") is not None and subprocess.run(command, capture_output=True).returncode == 0


@pytest.mark.slow
def test_on_a_full_disk_nothing_is_torn_and_it_goes_on_when_there_is_room(tmp_path: Path, root: Path) -> None:
    if not may_mount():
        pytest.skip("no private tmpfs can be mounted here")
    script = 'mount -t tmpfs -o size=1m none "$0" && exec "$@" "$0"'
    inside = [str(tmp_path), sys.executable, "-m", "tests.core.rollouts.full_disk"]
    command = ["unshare", "-Urm", "sh", "-c", script, *inside]
    result = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    said = result.stdout.splitlines()[-1]
    assert said.startswith("full "), said
    assert int(said.split()[1]) >= 8, "the disk was really full, at many moments"

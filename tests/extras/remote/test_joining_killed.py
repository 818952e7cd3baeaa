"""A round on S3 under kill -9: of the run's machine and of those that joined it, twenty times; each answer once.

Also a round with the real engine, sampled by `oapl join` on its own.
"""

import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import psutil
import pytest

from oapl_core.rollouts.generate import generate
from oapl_core.run_folder.run import Run
from oapl_extras.remote.joining import round_to_join
from oapl_extras.remote.mirror import Mirror
from oapl_extras.remote.object_store import ObjectStore
from tests.core.rollouts.engine_session import sampling_run
from tests.core.rollouts.slow_sampling import COMMAND
from tests.core.rollouts.test_killed import GROUP, PROBLEMS, REAL, content
from tests.processes import kill, started
from tests.s3_server import s3_server
from tests.sampling_run import MadeUpSampler, made_up_model, make_run
from tests.tiny_model import write_tiny_model
from tests.whole_run import made_more_than_once

KILLS, MACHINES, LEASE_S = 20, 3, 2.0
THROUGH: dict[str, Any] = {"rollouts": {"through": "mirror"}}
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with s3_server(tmp_path_factory.mktemp("s3") / "log") as url:
        yield url


@pytest.fixture(autouse=True)
def _none_is_left() -> Iterator[None]:
    yield
    while Started.all:
        kill(Started.all.pop())


class Started:
    """A process that is started again whenever it is found dead; none outlives its test."""

    all: ClassVar[list[psutil.Popen]] = []

    def __init__(self, command: list[str], output: Path, root: Path) -> None:
        self.command, self.output, self.root = command, output, root
        self.start()

    def start(self) -> None:
        with self.output.open("ab") as output:
            self.process = psutil.Popen(self.command, cwd=self.root, stdout=output, stderr=output)
        self.all.append(self.process)

    def kill(self) -> bool:
        """SIGKILL; False if it had ended by itself."""
        lived = self.process.poll() is None
        if lived:
            self.process.kill()
        assert self.process.wait() in (0, -9), self.output.read_text()[-2000:]
        return lived


def test_killed_twenty_times_each_answer_is_there_once(
    s3: str, tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = made_up_model(tmp_path / "model")
    prompts = {"train": [[5, i] for i in range(PROBLEMS)], "validation": [[6]], "heldout": [[7]]}
    settings: dict[str, Any] = {
        "sampling": {"group_size": GROUP, "max_tokens": 12, "problems_per_part": 5, "flush_s": 0.05}
    }
    mirror = s3.format("killed")
    run = make_run(tmp_path / "runs", model, prompts, mirror=mirror, fleet=THROUGH, **settings)
    Mirror(mirror, run.root.name).update(run)
    monkeypatch.setenv("OAPL_TEST_ANSWER_S", "1.0")
    monkeypatch.setenv("OAPL_TEST_LEASE_S", str(LEASE_S))
    url = mirror.replace("?", f"/{run.root.name}?")
    holder = [*COMMAND, str(run.root), "--round", "0"]
    joining = [sys.executable, "-m", "tests.extras.remote.slow_joining", url]
    started = {"run": Started(holder, tmp_path / "run.txt", root)}
    while round_to_join(ObjectStore(url)) is None:
        time.sleep(0.1)
    for k in range(MACHINES):
        command = [*joining, str(tmp_path / f"machine {k}"), str(LEASE_S)]
        started[f"machine {k}"] = Started(command, tmp_path / f"machine {k}.txt", root)
    draw, killed = random.Random(18), Counter[str]()
    while killed.total() < KILLS:
        time.sleep(draw.uniform(0.5, 2.0))
        who = draw.choice(sorted(started))
        killed[who] += started[who].kill()
        if draw.random() < 0.3 and who != "run":  # a machine of another name takes its place
            number = len(list(tmp_path.glob("machine *.txt")))
            command = [*joining, str(tmp_path / f"machine {number}"), str(LEASE_S)]
            started[who] = Started(command, tmp_path / f"machine {number}.txt", root)
        else:
            started[who].start()
    assert killed.keys() == started.keys(), killed
    assert len(content(run)) < PROBLEMS * GROUP, "it was killed while there was something to sample"
    monkeypatch.setenv("OAPL_TEST_ANSWER_S", "0.02")
    for one in started.values():
        one.kill()
        one.start()
    while started["run"].process.wait() != 0:
        started["run"].start()
    for name in started.keys() - {"run"}:
        assert started[name].process.wait(60) == 0, started[name].output.read_text()[-2000:]
    whole = make_run(tmp_path / "whole", model, prompts, **settings)
    generate(whole, 0, MadeUpSampler)
    assert content(run) == content(whole)
    assert made_more_than_once(run) == [], "a recorded part was recorded again"
    assert ObjectStore(url).list("queue") == {}
    said = "".join(path.read_text() for path in tmp_path.glob("*.txt"))
    assert "sampled by another machine" in said
    assert "taken over from a process that is gone" in said
    answered = Counter(line for line in said.splitlines() if line.startswith("answered"))
    print(killed, len(answered), answered.total(), said.count("taken over"), said.count("sampled by another machine"))


@pytest.mark.skipif(find_spec("vllm") is None, reason="the engine is not installed")
def test_a_round_of_the_real_engine_sampled_by_oapl_join(s3: str, tmp_path: Path, root: Path) -> None:
    model = write_tiny_model(tmp_path / "model")
    plain = sampling_run(tmp_path / "plain", model)
    subprocess.run([*REAL, str(plain.root), "--round", "0"], cwd=root, check=True, capture_output=True)
    whole = content(plain)
    mirror = s3.format("real")
    run = Run.create(
        plain.config.model_copy(
            update={"runs_dir": tmp_path / "runs", "mirror": mirror, "fleet": type(plain.config.fleet)(**THROUGH)}
        )
    )
    for name in ("problems.parquet", "prompts.parquet"):
        with run.writing(run.root / name, {}, {}) as draft:
            draft.path.write_bytes((plain.root / name).read_bytes())
    Mirror(mirror, run.root.name).update(run)
    with pytest.raises(InterruptedError):
        generate(run, 0, lambda model, config: MadeUpSampler(model, config, stop_after=0))
    url = mirror.replace("?", f"/{run.root.name}?")
    command = [sys.executable, "-m", "deployments.cli", "join", url, "--to", str(tmp_path / "joined"), "idle=0.1"]
    output = tmp_path / "spot.txt"
    sampler = MadeUpSampler(model, run.config.engine)

    def held_back(*_: Any) -> MadeUpSampler:
        while "waits for the round to be closed" not in output.read_text():
            assert spot.poll() is None, output.read_text()
            time.sleep(0.2)
        return sampler

    with output.open("wb") as sink, started(command, cwd=root, stdout=sink, stderr=sink) as spot:
        generate(run, 0, held_back)
        assert spot.wait(120) == 0, output.read_text()
    assert sampler.answered == [], "the machine that joined did it all"
    assert content(run) == whole
    assert output.read_text().rstrip().endswith("ends")

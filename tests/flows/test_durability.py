"""A real server and worker, everything killed once: the next run finishes the round, with nothing redone or lost."""

import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from oapl_core.planning.plan import Step, finished, preparation, round_steps
from oapl_core.run_folder.run import Run
from tests.played_run import all_gone, played_experiment, stages_started
from tests.prefect_server import PrefectServer, prefect_server
from tests.whole_run import ROOT, made_more_than_once

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrefectServer]:
    with prefect_server(tmp_path_factory.mktemp("server")) as server:
        server.start_worker()
        yield server


@dataclass(frozen=True)
class Night:
    """A run whose rounds a server starts."""

    server: PrefectServer
    experiment: Path
    root: Path

    @property
    def steps(self) -> list[Step]:
        """Of the first round and before it."""
        config = Run.open(self.root).config
        return [*preparation(config), *round_steps(0)]

    def start(self) -> str:
        """A flow run of the next round."""
        return self.server.run(self.experiment)

    def in_the_middle_of(self, label: str, times: int = 1) -> None:
        """Returns when the stage has been started so often and has made its first part."""
        self.server.wait(lambda: stages_started(self.root).count(label) >= times, 60, f"{label} starts")
        time.sleep(0.7)

    def finish(self) -> None:
        """The next run of the schedule, which finds everything well."""
        (self.root / "pause").write_text("0")
        end = self.server.ended(self.start())
        assert (end["state_name"], end["name"]) == ("Completed", "played-seed0, round 0")
        self.check()

    def check(self) -> None:
        """The first round is finished, and nothing of it was made twice or still runs."""
        assert finished(Run.open(self.root)) == self.steps
        assert made_more_than_once(Run.open(self.root)) == []
        assert all_gone(self.root, 5)


TWENTY_AT_ONCE = """
from prefect import flow, task
from prefect.task_runners import ThreadPoolTaskRunner

@task
def one(number):
    return number

@flow(task_runner=ThreadPoolTaskRunner(max_workers=20))
def twenty():
    futures = [one.submit(number) for number in range(20)]
    return sum(future.result() for future in futures)

assert [twenty() for _ in range(3)] == [190] * 3
"""


@pytest.fixture
def night(server: PrefectServer, tmp_path: Path) -> Night:
    root = tmp_path / "played-seed0"
    root.mkdir()
    (root / "pause").write_text("1.0")
    return Night(server, played_experiment(tmp_path, rounds=2), root)


def test_the_flow_killed_in_each_stage_costs_no_finished_part(night: Night) -> None:
    labels = ["problems.prepare", *(step.label for step in round_steps(0))]
    for label in labels:
        flow_run = night.start()
        process = night.server.process_of(flow_run)
        night.in_the_middle_of(label)
        process.kill()
        assert night.server.ended(flow_run, 30)["state_type"] == "CRASHED"
        assert all_gone(night.root, 10), "the guard ends the stage, and its child that ignores SIGTERM"
    night.finish()
    assert [stages_started(night.root).count(label) for label in labels] == [2] * len(labels)


@pytest.mark.parametrize(
    "label", [f"{verb} round 0" for verb in ("rollouts.generate", "verdicts.verify", "training.train")]
)
def test_cancelling_leaves_no_process_within_ten_seconds_and_the_next_run_goes_on(night: Night, label: str) -> None:
    flow_run = night.start()
    process = night.server.process_of(flow_run)
    night.in_the_middle_of(label)
    start = time.monotonic()
    night.server.cancel(flow_run)
    assert all_gone(night.root, 30)
    night.server.wait(lambda: not process.is_running() or process.status() == "zombie", 30, "the flow's process ends")
    took = time.monotonic() - start
    assert night.server.ended(flow_run, 30)["state_name"] == "Cancelled"
    assert took < 12, f"{took:.1f} s, of which up to 2 until the worker knows"
    night.finish()
    assert stages_started(night.root).count(label) == 2


def test_a_killed_worker_costs_nothing(night: Night) -> None:
    flow_run = night.start()
    night.in_the_middle_of("rollouts.generate round 0")
    night.server.kill(night.server.workers.pop())
    night.server.start_worker()
    assert night.server.ended(flow_run)["state_name"] == "Completed", "the flow's process goes on without its worker"
    night.check()


def test_a_machine_that_dies_is_noticed_and_the_next_run_need_not_wait_for_that(night: Night) -> None:
    flow_run = night.start()
    process = night.server.process_of(flow_run)
    night.in_the_middle_of("training.train round 0")
    night.server.kill(night.server.workers.pop())
    process.kill()
    night.server.start_worker()
    assert night.server.flow_run(flow_run)["state_name"] == "Running"
    night.finish()
    end = night.server.ended(flow_run, 240)
    assert (end["state_type"], end["state"]["message"]) == ("CRASHED", "no heartbeat for 90 s")


def test_a_run_that_died_before_its_first_heartbeat_is_noticed(server: PrefectServer) -> None:
    flow = server.client.get("/flows/name/oapl-round").json()["id"]
    dead = server.post("/flow_runs/", flow_id=flow)["id"]
    server.post(f"/flow_runs/{dead}/set_state", state={"type": "RUNNING", "name": "Running"})
    assert server.ended(dead, 180)["state"]["message"] == "no heartbeat for 90 s"


def test_a_killed_server_that_comes_back_costs_nothing(night: Night) -> None:
    flow_run = night.start()
    night.in_the_middle_of("rollouts.generate round 0")
    night.server.kill_server()
    time.sleep(5)
    night.server.start_server()
    assert night.server.ended(flow_run)["state_name"] == "Completed", "the flow's process waits for its server"
    night.check()


def test_twenty_task_runs_at_once_are_all_recorded(server: PrefectServer) -> None:
    subprocess.run([sys.executable, "-c", TWENTY_AT_ONCE], cwd=ROOT, env=server.environment, check=True, timeout=400)

    def recorded() -> bool:
        runs = server.post("/task_runs/filter", limit=200, task_runs={"name": {"like_": "one-"}})
        return len(runs) == 60 and {run["state_type"] for run in runs} == {"COMPLETED"}

    server.wait(recorded, 60, "60 task runs are recorded as completed")
    assert "| ERROR" not in (server.folder / "server.log").read_text(), "no `database is locked`"


def test_the_short_name_starts_the_deployment(night: Night) -> None:
    (night.root / "pause").write_text("0")
    start = f"experiment={night.experiment}"
    said = night.server.prefect("deployment", "run", "oapl-round", "-p", start, "--watch")
    assert "Created flow run" in said
    night.check()

"""Stages on machines of their own: a real server, and a process worker for each of three work pools.

Each worker is started in a folder of its own; all they share is the folder of the runs.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from oapl_core.planning.plan import finished, preparation, round_steps
from oapl_core.run_folder.run import Run
from tests.played_run import all_gone, left_behind, machines, played_experiment
from tests.prefect_server import PrefectServer, prefect_server
from tests.whole_run import ROOT, made_more_than_once

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

FLEET = ("fleet.rollouts=gpu", "fleet.training=gpu", "fleet.verdicts=cpu/default")
VERIFICATION = "verdicts.verify --round 0"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrefectServer]:
    with prefect_server(tmp_path_factory.mktemp("server"), stage_pools=("gpu", "cpu")) as server:
        for pool in ("oapl", "gpu", "cpu"):
            start_worker(server, pool)
        yield server


def start_worker(server: PrefectServer, pool: str) -> psutil.Popen:
    """Its folder has our settings of Prefect, and not the code."""
    folder = server.folder / f"machine {pool}"
    folder.mkdir(exist_ok=True)
    shutil.copy(ROOT / "pyproject.toml", folder)
    return server.start_worker(pool, pool, folder, OAPL_TEST_MACHINE=pool)


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    (tmp_path / "played-seed0").mkdir()
    return played_experiment(tmp_path, rounds=2)


def verification_begins(server: PrefectServer, root: Path, times: int) -> None:
    def begun() -> bool:
        return machines(root).count(("cpu", VERIFICATION)) >= times

    server.wait(lambda: (root / "where").exists() and begun(), 90, "verification begins")


def check_round(run: Run) -> None:
    assert finished(run) == [*preparation(run.config), *round_steps(0)]
    assert made_more_than_once(run) == []
    assert left_behind(run.root) == []


def test_each_stage_runs_on_the_machine_of_its_pool_and_the_round_is_that_of_one_machine(
    server: PrefectServer, experiment: Path, tmp_path: Path
) -> None:
    flow_run = server.run(experiment, overrides=FLEET)
    alone = server.run(experiment, overrides=("seed=1",))
    for started in (flow_run, alone):
        end = server.ended(started, 150)
        assert end["state_name"] == "Completed", end
    run, other = Run.open(tmp_path / "played-seed0"), Run.open(tmp_path / "played-seed1")
    assert {stage: machine for machine, stage in machines(run.root)} == {
        "problems.prepare": "oapl",
        "rollouts.generate --round 0": "gpu",
        f"{VERIFICATION} --follow": "cpu",
        VERIFICATION: "cpu",
        "groups.build --round 0": "oapl",
        "training.train --round 0": "gpu",
    }
    assert {machine for machine, _ in machines(other.root)} == {"oapl"}
    ours, theirs = ({name: e.sha256 for name, e in r.ledger.artifacts().items()} for r in (run, other))
    assert ours == theirs
    check_round(run)
    told = "\n".join(server.logs(flow_run))
    assert "round 0: sampling | 1/3 parts" in told, "the other machine's progress is in the logs of the round"


def test_shares_of_a_stage_are_flow_runs_of_their_own(server: PrefectServer, experiment: Path, tmp_path: Path) -> None:
    shared = ('fleet.rollouts={at="gpu", shares=3}',)
    assert server.ended(server.run(experiment, overrides=shared), 150)["state_name"] == "Completed"
    run = Run.open(tmp_path / "played-seed0")
    gpu = [stage for machine, stage in machines(run.root) if machine == "gpu"]
    wanted = ["rollouts.generate --round 0", *(f"rollouts.generate --round 0 --share {n}" for n in (2, 3))]
    assert sorted(gpu) == wanted
    check_round(run)


def test_a_pool_that_the_server_does_not_know_is_one_clear_line(server: PrefectServer, experiment: Path) -> None:
    end = server.ended(server.run(experiment, overrides=("fleet.verdicts=nowhere",)))
    assert end["state_name"] == "Failed"
    assert "has no deployment oapl-stage/nowhere; `make deploy POOLS=nowhere` makes it" in end["state"]["message"]


def test_the_round_killed_or_cancelled_ends_its_stage_on_the_other_machine_and_goes_on(
    server: PrefectServer, experiment: Path, tmp_path: Path
) -> None:
    root = tmp_path / "played-seed0"
    (root / "pause").write_text("2.0")
    killed = server.run(experiment, overrides=FLEET)
    verification_begins(server, root, 1)
    server.process_of(killed).kill()
    assert all_gone(root, 10), "the machine sees that nobody holds the run folder"
    cancelled = server.run(experiment, overrides=FLEET)
    verification_begins(server, root, 2)
    server.cancel(cancelled)
    assert all_gone(root, 12), "up to 2 s until the worker knows"
    assert server.ended(cancelled, 30)["state_name"] == "Cancelled"
    (root / "pause").write_text("0")
    end = server.ended(server.run(experiment, overrides=FLEET))
    assert (end["state_name"], end["name"]) == ("Completed", "played-seed0, round 0")
    check_round(Run.open(root))
    children = server.post("/flow_runs/filter", flows={"name": {"any_": ["oapl-stage"]}})
    assert {child["state_type"] for child in children} <= {"COMPLETED", "CANCELLED", "CRASHED"}


def test_a_machine_that_dies_in_the_middle_of_its_stage_costs_no_finished_part(
    server: PrefectServer, experiment: Path, tmp_path: Path
) -> None:
    root = tmp_path / "played-seed0"
    (root / "pause").write_text("2.0")
    flow_run = server.run(experiment, overrides=FLEET)
    verification_begins(server, root, 1)
    server.wait((root / "round_00" / "2_verdicts").exists, 30, "the first part is judged")
    worker = next(w for w in server.workers if w.is_running() and w.environ().get("OAPL_TEST_MACHINE") == "cpu")
    stage = worker.children()
    server.kill(worker)
    server.workers.remove(worker)
    for process in stage:
        process.kill()
    assert all_gone(root, 10)
    (root / "pause").write_text("0")
    start_worker(server, "cpu")
    assert server.ended(flow_run, 240)["state_name"] == "Completed", "after 90 s of silence the stage is tried again"
    assert machines(root).count(("cpu", VERIFICATION)) == 2
    check_round(Run.open(root))

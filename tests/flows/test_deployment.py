"""The deployment on a real server, with a real worker: run, named, and never doubled."""

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from deployments.deploying import code_version
from oapl_core.planning.plan import finished, preparation, round_steps
from oapl_core.run_folder.lock import hold
from oapl_core.run_folder.run import Run
from tests.played_run import PARTS, left_behind, played_experiment, stages_started
from tests.prefect_server import PrefectServer, prefect_server
from tests.whole_run import ROOT, made_more_than_once


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrefectServer]:
    with prefect_server(tmp_path_factory.mktemp("server")) as server:
        server.start_worker()
        yield server


def test_of_two_simultaneous_starts_one_does_the_round_and_the_other_is_skipped(
    server: PrefectServer, tmp_path: Path
) -> None:
    (tmp_path / "set.jsonl").touch()
    server.prefect(str(tmp_path / "set.jsonl"), "samples=3", module="deployments.measuring")
    experiment, root = played_experiment(tmp_path, rounds=2), tmp_path / "played-seed0"
    root.mkdir()
    (root / "pause").write_text("0.4")
    first, second = server.run(experiment), server.run(experiment)
    ends = sorted((server.ended(first), server.ended(second)), key=lambda end: str(end["state_name"]))
    assert [end["state_name"] for end in ends] == ["Completed", "Skipped"]
    assert [end["state_type"] for end in ends] == ["COMPLETED", "CANCELLED"]
    assert ends[0]["name"] == "played-seed0, round 0"
    assert "is being worked on by process" in ends[1]["state"]["message"]
    run = Run.open(root)
    assert finished(run) == [*preparation(run.config), *round_steps(0)]
    assert len(stages_started(root)) == len(finished(run)), "each stage was started once"
    assert made_more_than_once(run) == []
    assert left_behind(root) == []
    _each_artifact_is_materialised_once(server, run)
    _each_checkpoint_is_to_be_evaluated(server, run)
    coming = {"state": {"type": {"any_": ["SCHEDULED"]}}}
    server.wait(lambda: bool(server.post("/flow_runs/filter", flow_runs=coming)), 20, "coming nights are written down")
    time.sleep(2)  # logs are sent in batches
    done = next(run for run in (first, second) if server.flow_run(run)["state_name"] == "Completed")
    assert "round 0: sampling | 1/3 parts" in "\n".join(server.logs(done)), "the stages' progress is in the run's logs"


def _each_artifact_is_materialised_once(server: PrefectServer, run: Run) -> None:
    made = run.ledger.artifacts()
    name = "prefect.asset.materialization.succeeded"
    server.wait(lambda: len(server.events(name)) >= len(made), 30, "every artifact is told")
    events = {event["resource"]["prefect.resource.id"]: event for event in server.events(name)}
    assert len(server.events(name)) == len(events), "each of them once"
    assert set(events) == {f"oapl://{run.root.name}/{artifact}" for artifact in made}
    for artifact, entry in made.items():
        payload = events[f"oapl://{run.root.name}/{artifact}"]["payload"]
        assert (payload["sha256"], payload["rows"], payload["inputs"]) == (entry.sha256, entry.rows, entry.inputs)


def _each_checkpoint_is_to_be_evaluated(server: PrefectServer, run: Run) -> None:
    """The played ones cannot be, but the flow is started with each of them."""
    found: list[dict[str, Any]] = []

    def started() -> bool:
        found[:] = server.post("/flow_runs/filter", flows={"name": {"any_": ["oapl-evaluate"]}})
        return len(found) >= PARTS

    server.wait(started, 60, "the checkpoints' evaluations are started")
    asked = sorted((one["parameters"] for one in found), key=lambda parameters: str(parameters["models"]))
    problems = {"path": str(run.root.parent / "set.jsonl")}
    assert asked == [
        {"models": [f"{run.root}:round_00/epoch_{part + 11}"], "problems": problems, "overrides": ["samples=3"]}
        for part in range(PARTS)
    ]


@pytest.mark.slow
def test_a_worker_that_a_script_started_with_an_ampersand_ends_on_sigterm(server: PrefectServer) -> None:
    log = server.folder / "scripted.log"
    worker_of_a_pool = f"{sys.executable} -m prefect worker start --pool oapl --type process --name scripted"
    # without job control, as in every script: the shell ignores SIGINT for it
    shell = ["sh", "-c", f"{worker_of_a_pool} > {log} 2>&1 & echo $!"]
    done = subprocess.run(shell, cwd=ROOT, env=server.environment, capture_output=True, text=True, timeout=60)
    worker = psutil.Process(int(done.stdout))
    try:
        server.wait(lambda: "Worker 'scripted' started" in log.read_text(), 60, "the worker started")
        worker.terminate()
        worker.wait(10)
    finally:
        if worker.is_running():
            worker.kill()
    assert "Received SIGTERM" in log.read_text()


def test_deployments_say_which_code_they_are_of_and_the_worker_how_it_is(server: PrefectServer) -> None:
    found = {one["name"]: one["version"] for one in server.post("/deployments/filter")}
    assert set(found.values()) == {code_version()}
    assert re.fullmatch(r"[0-9a-f]{12}(-changed)?", found["oapl-round"])
    assert httpx.get(server.health, timeout=30).json() == {"message": "OK"}


@pytest.mark.slow
def test_plain_prefect_deploys_starts_by_the_short_name_and_says_what_the_old_parameter_is_called_now(
    server: PrefectServer, tmp_path: Path
) -> None:
    server.prefect("deploy", "--all")
    experiment = played_experiment(tmp_path, rounds=2)
    flat = ("-p", f"experiment={experiment}", "-p", 'overrides=["seed=1"]')
    assert "finished successfully" in server.prefect("deployment", "run", "oapl-round", *flat, "--watch")
    run = Run.open(tmp_path / "played-seed1")
    assert finished(run) == [*preparation(run.config), *round_steps(0)]
    nested = ("-p", 'start={"experiment": "my.toml"}')
    refused = server.prefect("deployment", "run", "oapl-round/oapl-round", *nested, code=1)
    assert "'start'" in refused and "available on the deployment: 'experiment', 'overrides'" in " ".join(
        refused.split()
    )
    with hold(run.root):
        said = server.prefect("deployment", "run", "oapl-round", *flat, "--watch", code=1)
    assert "finished in state 'Skipped'" in said

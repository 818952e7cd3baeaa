"""The deployment on a real server, with a real worker: run, named, and never doubled."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from oapl_core.planning.plan import finished, preparation, round_steps
from oapl_core.run_folder.run import Run
from tests.played_run import left_behind, played_experiment, stages_started
from tests.prefect_server import PrefectServer, prefect_server
from tests.whole_run import made_more_than_once


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrefectServer]:
    with prefect_server(tmp_path_factory.mktemp("server")) as server:
        server.start_worker()
        yield server


def test_of_two_simultaneous_starts_one_does_the_round_and_the_other_is_skipped(
    server: PrefectServer, tmp_path: Path
) -> None:
    experiment, root = played_experiment(tmp_path, rounds=2), tmp_path / "played-seed0"
    root.mkdir()
    (root / "pause").write_text("0.4")
    first, second = server.run(experiment), server.run(experiment)
    ends = sorted((server.ended(first), server.ended(second)), key=lambda end: str(end["state_name"]))
    assert [end["state_name"] for end in ends] == ["Completed", "Skipped"]
    assert [end["state_type"] for end in ends] == ["COMPLETED", "COMPLETED"]
    assert ends[0]["name"] == "played-seed0, round 0"
    assert "is being worked on by process" in ends[1]["state"]["message"]
    run = Run.open(root)
    assert finished(run) == [*preparation(run.config), *round_steps(0)]
    assert len(stages_started(root)) == len(finished(run)), "each stage was started once"
    assert made_more_than_once(run) == []
    assert left_behind(root) == []
    coming = {"state": {"type": {"any_": ["SCHEDULED"]}}}
    server.wait(lambda: bool(server.post("/flow_runs/filter", flow_runs=coming)), 20, "coming nights are written down")
    time.sleep(2)  # logs are sent in batches
    done = next(run for run in (first, second) if server.flow_run(run)["state_name"] == "Completed")
    assert "round 0: sampling | 1/3 parts" in "\n".join(server.logs(done)), "the stages' progress is in the run's logs"

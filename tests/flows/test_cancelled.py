"""The real stages (vLLM, verifier, DeepSpeed) cancelled as the UI does it: no process is left, the round goes on."""

import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from oapl_core.planning.plan import finished, preparation, round_steps
from oapl_core.run_folder.run import Run
from tests.prefect_server import PrefectServer, prefect_server
from tests.whole_run import made_more_than_once, small_demo

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def cancelled_when(server: PrefectServer, flow_run: str, moment: Callable[[], bool], what: str) -> float:
    """Cancel at ``moment``; seconds until the flow's process and all that was below it are gone."""
    process = server.process_of(flow_run)
    server.wait(moment, 150, what)
    family = [process, *process.children(recursive=True)]
    assert len(family) >= 3, "flow, guard and stage"
    start = time.monotonic()
    server.cancel(flow_run)
    server.wait(lambda: not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in family), 60, "all end")
    return time.monotonic() - start


def test_sampling_with_verification_and_training_are_cancelled_and_the_round_goes_on(tmp_path: Path) -> None:
    changes = ["pretrain.epochs=1", "rounds.0.keep=all", "rounds.0.epochs=5"]  # what it learns does not matter here
    experiment, *overrides = [*small_demo(tmp_path), *changes]
    root = tmp_path / "runs" / "demo-seed0"
    training_log = root / "logs" / "training.train_round_0.log"
    with prefect_server(tmp_path / "server") as server:
        server.start_worker()
        sampling = server.run(Path(experiment), overrides=overrides)
        part = root / "round_00" / "1_rollouts" / "part-00000.parquet"
        took = cancelled_when(server, sampling, part.exists, "the first part is sampled")
        assert server.ended(sampling)["state_name"] == "Cancelled"
        written = part.stat().st_mtime_ns
        training = server.run(Path(experiment), overrides=overrides)

        def is_training() -> bool:
            return training_log.exists() and "progress | " in training_log.read_text()

        took = max(took, cancelled_when(server, training, is_training, "training has begun"))
        assert server.ended(training)["state_name"] == "Cancelled"
        assert took < 12, f"{took:.1f} s, of which up to 2 until the worker knows"
        end = server.ended(server.run(Path(experiment), overrides=overrides), 150)
    assert (end["state_name"], end["name"]) == ("Completed", "demo-seed0, round 0")
    run = Run.open(root)
    assert finished(run) == [*preparation(run.config), *round_steps(0)]
    assert made_more_than_once(run) == []
    assert part.stat().st_mtime_ns == written

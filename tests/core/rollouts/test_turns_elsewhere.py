"""Trajectories of replicas and of a real server are those of one engine: same tokens, log-probs, calls and turns."""

import os
import signal
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from oapl_core.environments.turn_check import check_turns
from oapl_core.run_folder.run import Run
from oapl_core.tables import ROLLOUTS, read_table
from tests.core.rollouts.engine_session import CONFIG, GROUP, PROMPTS, requests
from tests.extras.servers.test_servers import start_server
from tests.sampling_run import make_run
from tests.tiny_model import write_tiny_model

pytestmark = [pytest.mark.slow, pytest.mark.skipif(find_spec("vllm") is None, reason="the engine is not installed")]


def sampled(folder: Path, model: Path, **changes: Any) -> dict[str, dict[str, Any]]:
    """Rows of a round of several turns; its stage is a process of its own."""
    prompts = {"train": [list(r.prompt_ids) for r in requests()[::GROUP]], "validation": [], "heldout": [[5]]}
    run = make_run(
        folder,
        model,
        prompts,
        environment={"function": "tests.played_environments:Looked", "turn_tokens": 24},
        sampling={"group_size": GROUP, "max_tokens": 120, "stop": [*" aei"], "problems_per_part": 4},
        engine=CONFIG.model_dump() | changes.pop("engine", {}),
        **changes,
    )
    subprocess.run([sys.executable, "-m", "oapl_core.rollouts.generate", str(run.root), "--round", "0"], check=True)
    found = check_turns(run)
    assert (found.rows, found.unsound) == (GROUP * PROMPTS, [])
    return rows(run)


def rows(run: Run) -> dict[str, dict[str, Any]]:
    parts = sorted(run.rollouts(0).glob("part-*.parquet"))
    found = [row for part in parts for row in read_table(part, ROLLOUTS).to_pylist()]
    for row in found:
        for call in row["tool_calls"]:
            del call["seconds"]
    return {row["rollout_id"]: row for row in found}


def assert_same(one: dict[str, dict[str, Any]], other: dict[str, dict[str, Any]]) -> None:
    assert one.keys() == other.keys()
    names = ("response_ids", "loss_mask", "turn_starts", "prompt_hashes", "tool_calls", "finish_reason", "text")
    for key, row in one.items():
        assert {name: row[name] for name in names} == {name: other[key][name] for name in names}
        assert row["logprobs"] == pytest.approx(other[key]["logprobs"], abs=1e-4)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"), seed=1, sharpness=8)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, model: Path) -> dict[str, dict[str, Any]]:
    found = sampled(tmp_path_factory.mktemp("whole"), model)
    assert sum(len(row["turn_starts"]) > 1 for row in found.values()) > len(found) // 2
    return found


def test_replicas_make_the_trajectories_of_one_engine(
    tmp_path: Path, model: Path, whole: dict[str, dict[str, Any]]
) -> None:
    assert_same(sampled(tmp_path, model, engine={"replicas": 2}), whole)


def test_a_server_makes_the_trajectories_of_an_engine(
    tmp_path: Path, model: Path, whole: dict[str, dict[str, Any]]
) -> None:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    server = start_server(model, port, tmp_path / "server.log")
    try:
        sampler = {"urls": [f"http://127.0.0.1:{port}"], "wait_minutes": 8.0}
        assert_same(sampled(tmp_path, model, sampler=sampler), whole)
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()

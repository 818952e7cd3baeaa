"""What Prefect adds: to a round whose stages take no time, to one whose stages talk as those of hours do, and to a run
that has nothing left to do; and what the page of a round costs.

`make bench` prints the seconds; docs/benchmarks/orchestration.md keeps them.
"""

import time
from pathlib import Path

import psutil
import pytest

from oapl_extras.prefect_pages.round_summary import summarize
from tests.played_run import played_experiment, stages_ended
from tests.prefect_server import PrefectServer, prefect_server
from tests.synthetic_run import Sizes, write_synthetic_run

pytestmark = pytest.mark.bench

LIMIT_ROUND_S, LIMIT_NOTHING_S = 15.0, 10.0
LIMIT_LONG_S = 0.02 * 600
"""What the shortest of the rounds that the 2 % are promised for may be given."""
LONG_PART_S, LINES_PER_PART = 14.0, 1600
"""Eleven parts: 17,600 progress lines, as many as 10 hours have with one every 2 s."""
TALKING = f"""
            for line in range(1, {LINES_PER_PART} + 1):
                print(f"progress | {{step.title}} | {{part * {LINES_PER_PART} + line}}/{3 * LINES_PER_PART} rollouts "
                      "| 114/s | 20 s left", flush=True)
                time.sleep({LONG_PART_S / LINES_PER_PART})
"""


def seconds_of(server: PrefectServer, experiment: Path) -> float:
    """From the start of the round's flow run on the server to its end."""
    start = time.monotonic()
    assert server.ended(server.run(experiment), 600)["state_name"] == "Completed"
    return time.monotonic() - start


def seconds_in_stages(root: Path) -> float:
    """One after the other, so that what is left of a round is not theirs."""
    return sum(float(str(stage["seconds"])) for stage in stages_ended(root) if "follow" not in str(stage["stage"]))


def cpu_s(processes: list[psutil.Process]) -> float:
    """Of the processes and all that they started and that has ended."""
    times = [process.cpu_times() for process in processes]
    return float(sum(t.user + t.system + t.children_user + t.children_system for t in times))


def test_a_deployed_round_costs_seconds_beside_its_stages_and_a_finished_one_next_to_none(tmp_path: Path) -> None:
    experiment, root = played_experiment(tmp_path, rounds=1), tmp_path / "played-seed0"
    with prefect_server(tmp_path / "server", PREFECT_WORKER_QUERY_SECONDS="2") as server:
        server.start_worker()
        server.wait(lambda: bool(server.post("/work_pools/oapl/workers/filter")), 60, "the worker is up")
        with_stages = seconds_of(server, experiment)
        nothing_left = seconds_of(server, experiment)
    in_stages = seconds_in_stages(root)
    print(f"\nround: {with_stages:.1f} s from start to end, {in_stages:.1f} s of it in stages")
    print(f"nothing left to do: {nothing_left:.1f} s from start to end")
    assert with_stages - in_stages < LIMIT_ROUND_S
    assert nothing_left < LIMIT_NOTHING_S


@pytest.mark.timeout(900)
def test_the_lines_of_ten_hours_make_a_round_no_longer(tmp_path: Path) -> None:
    experiment, root = played_experiment(tmp_path, rounds=1), tmp_path / "played-seed0"
    player = tmp_path / "player.py"
    sleep = next(line for line in player.read_text().splitlines(keepends=True) if "time.sleep(float" in line)
    player.write_text(player.read_text().replace(sleep, TALKING))
    with prefect_server(tmp_path / "server", PREFECT_WORKER_QUERY_SECONDS="2") as server:
        worker = server.start_worker()
        server.wait(lambda: bool(server.post("/work_pools/oapl/workers/filter")), 60, "the worker is up")
        assert server.server is not None
        family = [server.server, *server.server.children(recursive=True), worker]
        before = cpu_s(family)
        whole = seconds_of(server, experiment)
        busy = cpu_s(family) - before
    in_stages = seconds_in_stages(root)
    print(
        f"\nlong round: {whole:.1f} s, {whole - in_stages:.1f} s of it beside the stages; CPU {busy:.1f} s of server,"
    )
    print("worker and flow run with the played stages")
    assert whole - in_stages < LIMIT_LONG_S


def test_the_page_of_a_round_is_made_in_seconds(tmp_path: Path) -> None:
    run = write_synthetic_run(tmp_path, Sizes(train=960, heldout=150, group=8, samples=16))
    for which in ("first", "next"):
        folder = tmp_path / which
        folder.mkdir()
        start = time.monotonic()
        summarize(run, 0, folder)
        print(f"\nthe {which} page of a round of 7,680 rollouts: {time.monotonic() - start:.1f} s")
        assert time.monotonic() - start < LIMIT_ROUND_S

"""What starts the ranks, on one machine and on several."""

import sys
from pathlib import Path

import pytest

from oapl_core.errors import ConfigError
from oapl_core.training.ranks import rank_command
from tests.core.training.made_round import make_run


def test_ranks_of_one_machine_are_started_by_torch(tmp_path: Path, sharp_model: Path) -> None:
    run = make_run(tmp_path, sharp_model, processes=2)
    assert rank_command(run, "training.train", "--round", "0") == [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        "-m",
        "oapl_core.training.train",
        str(run.root),
        "--round",
        "0",
    ]


def test_ranks_of_several_machines_are_started_by_deepspeed(tmp_path: Path, sharp_model: Path) -> None:
    hostfile = tmp_path / "hosts"
    hostfile.write_text("node1 slots=8\nnode2 slots=8\n")
    run = make_run(tmp_path, sharp_model, hostfile=hostfile)
    assert rank_command(run, "training.train", "--round", "0") == [
        sys.executable,
        "-m",
        "deepspeed.launcher.runner",
        "--hostfile",
        str(hostfile),
        "--module",
        "--no_local_rank",
        "oapl_core.training.train",
        str(run.root),
        "--round",
        "0",
    ]


def test_a_missing_hostfile_is_named(tmp_path: Path, sharp_model: Path) -> None:
    run = make_run(tmp_path, sharp_model, hostfile=tmp_path / "hosts")
    with pytest.raises(ConfigError, match=r"`training.hostfile`: .*hosts is not a file"):
        rank_command(run, "training.train", "--round", "0")


@pytest.mark.slow
def test_deepspeeds_launcher_understands_the_command(tmp_path: Path, sharp_model: Path) -> None:
    from deepspeed.launcher.runner import fetch_hostfile, parse_args

    hostfile = tmp_path / "hosts"
    hostfile.write_text("node1 slots=8\nnode2 slots=8\n")
    run = make_run(tmp_path, sharp_model, hostfile=hostfile)
    arguments = parse_args(rank_command(run, "training.train", "--round", "0")[3:])
    assert (arguments.user_script, arguments.module, arguments.no_local_rank) == (
        "oapl_core.training.train",
        True,
        True,
    )
    assert arguments.user_args == [str(run.root), "--round", "0"]
    assert dict(fetch_hostfile(arguments.hostfile)) == {"node1": 8, "node2": 8}

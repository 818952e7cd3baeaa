"""What starts the ranks of one machine; of several: test_nodes.py."""

import sys
from pathlib import Path

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

"""What starts the ranks of one machine; of several: test_nodes.py."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from oapl_core.errors import ConfigError, StageFailed
from oapl_core.planning import pipeline as pipelines
from oapl_core.run_folder.run import Run
from oapl_core.settings.experiment_file import parse_experiment
from oapl_core.training.interruption import INTERRUPTED
from oapl_core.training.launching import _complain, rank_command
from tests.core.training.made_round import make_run


def test_ranks_of_one_machine_are_started_by_a_launcher_that_only_it_can_reach(
    tmp_path: Path, sharp_model: Path
) -> None:
    run = make_run(tmp_path, sharp_model, processes=2)
    assert rank_command(run, "training.train", "--round", "0") == [
        sys.executable,
        "-m",
        "oapl_core.training.one_machine",
        "--nproc-per-node=2",
        "-m",
        "oapl_core.training.train",
        str(run.root),
        "--round",
        "0",
    ]


@pytest.mark.parametrize(
    ("pipeline", "fleet", "refused"),
    [
        ({}, {}, True),
        ({"engine_gpus": [0, 1], "trainer_gpus": [1, 2]}, {}, True),
        ({"engine_gpus": [0, 1], "trainer_gpus": [2, 3]}, {}, False),
        ({"trainer_gpus": [2, 3]}, {"rollouts": "gpu"}, False),
    ],
)
def test_where_gpus_are_engine_and_trainer_do_not_share_them(
    tmp_path: Path,
    sharp_model: Path,
    monkeypatch: pytest.MonkeyPatch,
    pipeline: dict[str, Any],
    fleet: dict[str, Any],
    refused: bool,
) -> None:
    values = make_run(tmp_path / "template", sharp_model).config.model_dump(mode="json")
    paths = {"runs_dir": str(tmp_path), "cache_dir": str(tmp_path / "cache")}
    run = Run.create(parse_experiment(values | paths | {"pipeline": pipeline, "fleet": fleet}, "test"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    pipelines.choose_gpus(
        Run.create(parse_experiment(values | {"name": "none", "pipeline": {}}, "test")), "training.train"
    )
    (tmp_path / "nvidia0").touch()
    monkeypatch.setattr(pipelines, "_DEVICES", tmp_path)
    if refused:
        with pytest.raises(ConfigError, match="would share GPUs"):
            pipelines.choose_gpus(run, "training.train")
        return
    pipelines.choose_gpus(run, "training.train")
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "2,3"


def test_a_lost_node_counts_more_than_what_its_ranks_were_asked_to_do() -> None:
    with pytest.raises(StageFailed, match=r"node b was lost \(code 137\) and the others were ended"):
        _complain([f"error: {INTERRUPTED} after step 7", "node b ended with code 137", "node a ended with code 1"], 1)

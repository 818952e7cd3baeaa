"""Ways to train are asked for by their settings, and a training imports no other."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from oapl_core.settings.training import TrainingConfig
from oapl_core.training.ways import Way, asked, way
from tests.core.training.made_round import made_groups, make_run, write_groups

ON: dict[str, dict[str, Any]] = {
    "zero_stage": {"zero_stage": 3},
    "router": {"router": "frozen"},
    "adapter": {"adapter": {"rank": 2}},
    "share_prompts": {"share_prompts": "auto"},
    "sequence_parallel": {"sequence_parallel": 2, "processes": 2},
    "packing": {"packing": "on"},
    "kernels": {"kernels": "liger"},
}
"""Settings that ask for each way, in the order in which they see the model."""
IMPORTED = """
import os, sys
from pathlib import Path
import deepspeed.ops.op_builder, transformers.models.qwen3.modeling_qwen3
from oapl_core import plugins
from oapl_core.run_folder.run import Run
from oapl_core.training.train import train
for folder in sys.argv[1:]:  # each in a process of its own, which shares what is imported from others
    if os.fork() == 0:
        train(Run.open(Path(folder)), 0)
        places = plugins.BUILT_IN["training"].items()
        print("IMPORTED", *(name for name, place in places if place.partition(":")[0] in sys.modules))
        sys.exit()
    assert os.wait()[1] == 0
"""


@pytest.mark.parametrize("name", ON)
def test_a_setting_asks_for_its_way(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    training = TrainingConfig.model_validate(ON[name])
    assert list(asked(training)) == [name]
    assert isinstance(way(name, training, 1), Way)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert set(asked(training)) == {name, "packing", "kernels"}, "`auto` asks for these two on GPUs"


@pytest.mark.parametrize("given", [{"attention": "flash-3"}, {"compile": True}])
def test_kernels_that_must_be_used_are_asked_for_without_a_gpu(given: dict[str, Any]) -> None:
    assert list(asked(TrainingConfig.model_validate(given))) == ["kernels"]


def test_ways_come_in_one_order_whatever_the_settings_order() -> None:
    every: dict[str, Any] = {}
    for settings in reversed(ON.values()):
        every |= settings
    assert list(asked(TrainingConfig.model_validate(every))) == list(ON)
    assert list(asked(TrainingConfig())) == []


@pytest.mark.slow
def test_a_training_imports_what_it_asks_for_and_no_other_way(tmp_path: Path, sharp_model: Path) -> None:
    every: list[dict[str, Any]] = [{}, {"packing": "on", "recompute": "all", "reference": "reference"}]
    runs = [
        make_run(tmp_path / str(number), sharp_model, epochs=1, trackers=[], **settings)
        for number, settings in enumerate(every)
    ]
    for run in runs:
        write_groups(run, made_groups(sharp_model))
    command = [sys.executable, "-c", IMPORTED, *(str(run.root) for run in runs)]
    environment = os.environ | {"DS_ACCELERATOR": "cpu", "TORCHDYNAMO_DISABLE": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    found = [set(line.split()[1:]) for line in done.stdout.splitlines() if line.startswith("IMPORTED")]
    # whoever asks what is recomputed is told how much memory that needs; of a tiny model nobody asks
    assert found == [set(), {"packing", "recompute", "reference", "memory"}]

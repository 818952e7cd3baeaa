"""ZeRO 3 shards weights as they are read: what a rank holds meanwhile, and that nothing else changes."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from oapl_core.run_folder.run import Run
from oapl_core.settings.training import TrainingConfig
from oapl_core.training.model.checkpoint import load_model
from oapl_core.training.model.division import Sharded
from tests.core.training.made_round import made_groups, make_run, train_in_a_process, write_groups
from tests.core.training.test_resume import EPOCHS, end_at_random_steps, prepare
from tests.family_models import write_family
from tests.tiny_model import write_tiny_model

Row = dict[str, Any]
WEIGHT = {"float32": 4, "bfloat16": 2}


def test_a_hollow_model_has_the_shapes_of_the_whole_one_and_no_memory(tmp_path: Path) -> None:
    for name, folder in (("dense", write_tiny_model(tmp_path / "dense")), ("experts", _family(tmp_path, "qwen3-moe"))):
        whole, hollow = load_model(folder), load_model(folder, weightless=True)
        Sharded(TrainingConfig(zero_stage=3)).change(hollow.model)
        assert hollow.types == whole.types, name
        ours, theirs = (dict(stored.model.named_parameters()) for stored in (hollow, whole))
        assert [*ours] == [*theirs], "tied weights are one"
        assert {n: w.shape for n, w in ours.items()} == {n: w.shape for n, w in theirs.items()}
        assert {w.dtype for w in ours.values()} == {torch.bfloat16}
        assert sum(w.untyped_storage().nbytes() for w in ours.values()) == 2 * len(ours)
        assert type(hollow.model) is type(whole.model)
        assert hollow.model.config._attn_implementation == whole.model.config._attn_implementation


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """59 million weights, in float32."""
    return write_tiny_model(tmp_path_factory.mktemp("large"), hidden_size=768, layers=10)


@pytest.fixture(scope="module")
def rows(large: Path) -> list[Row]:
    return made_groups(large, groups=2)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_no_rank_holds_the_model_and_the_export_is_the_same_to_the_bit(
    tmp_path: Path, large: Path, rows: list[Row], dtype: str
) -> None:
    peaks, exports = {}, {}
    for how in ("whole", "divided"):
        run = _run(tmp_path / how, large, rows, dtype=dtype, processes=2)
        peaks[how] = _trained(run, how)
        exports[how] = (run.checkpoint(0, 1) / "model.safetensors").read_bytes()
    alone = _trained(_run(tmp_path / "alone", large, rows, dtype=dtype), "divided")
    size = WEIGHT[dtype] * sum(weight.numel() for weight in load_model(large).model.parameters())
    shares = {name: [round(found / size, 3) for found in peak] for name, peak in (peaks | {"alone": alone}).items()}
    print(dtype, shares)
    assert exports["divided"] == exports["whole"]
    assert max(shares["divided"]) < 0.75, shares
    assert shares["whole"][1] > 0.95, "else this could not fail"
    assert shares["alone"][0] > 0.95


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "dtype", "adapter"),
    [
        ("qwen3-moe", "float32", None),
        ("gpt-oss", "bfloat16", None),
        ("deepseek-v3", "float32", None),
        ("mixtral", "bfloat16", None),
        ("qwen3", "bfloat16", {"rank": 4}),
        ("deepseek-v3", "bfloat16", {"rank": 4}),
        ("qwen3-next", "bfloat16", None),
        ("gemma3", "float32", None),
    ],
)
def test_a_family_trains_as_where_every_rank_has_loaded_it(
    tmp_path: Path, family: str, dtype: str, adapter: dict[str, Any] | None
) -> None:
    model = _family(tmp_path, family)
    rows, exports = made_groups(model, groups=2), []
    for how in ("whole", "divided"):
        run = _run(tmp_path / how, model, rows, dtype=dtype, processes=2, adapter=adapter)
        _trained(run, how)
        exports.append((run.checkpoint(0, 1) / "model.safetensors").read_bytes())
    assert exports[0] == exports[1]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_two_ranks_that_read_one_model_resume_to_the_same_bits(
    tmp_path: Path, sharp_model: Path, many_rows: list[Row], dtype: str
) -> None:
    settings = {"dtype": dtype, "processes": 2, "zero_stage": 3, "max_mismatch": 1.0}
    runs = [prepare(tmp_path / name, sharp_model, many_rows, **settings) for name in ("whole", "killed")]
    end_at_random_steps(runs[1], (signal.SIGKILL,))
    files = []
    for run in runs:
        train_in_a_process(run)
        files.append((run.checkpoint(0, EPOCHS) / "model.safetensors").read_bytes())
    assert files[0] == files[1]


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of two runs are compared to the bit."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def _family(folder: Path, family: str) -> Path:
    write_family(folder / family, family)
    return folder / family


def _run(folder: Path, model: Path, rows: list[Row], **training: Any) -> Run:
    settings: dict[str, Any] = {"zero_stage": 3, "batch_size": 4, "trackers": [], "max_mismatch": 1.0}
    run = make_run(folder, model, epochs=1, **(settings | training))
    write_groups(run, rows)
    return run


def _trained(run: Run, how: str) -> list[int]:
    """Train the round; the bytes that each rank needed to load it."""
    ranks = run.config.training.processes
    launcher = ["-m", "oapl_core.training.one_machine", f"--nproc-per-node={ranks}"] if ranks > 1 else []
    command = [sys.executable, *launcher, "-m", "tests.core.training.divided_training", str(run.root), how]
    # one arena and early returns: memory that is free but kept is no weight
    environment = os.environ | {"MALLOC_ARENA_MAX": "1", "MALLOC_TRIM_THRESHOLD_": "65536"}
    result = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert result.returncode == 0, result.stdout + result.stderr
    told = [line.split()[1:] for line in result.stdout.splitlines() if line.startswith("LOADED")]
    return [int(held) for _, held in sorted(told)]

"""Copies with fewer bits: errors within their bound, folders that load, embeddings untouched."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from bench.claims.quantised import GROUP, int4, rounded
from oapl_core.training.model.checkpoint import load_model
from tests.tiny_model import write_tiny_model


@pytest.mark.parametrize("bits", [8, 4, 3, 2])
@pytest.mark.parametrize("inputs", [GROUP, 3 * GROUP, GROUP + 5])
def test_no_weight_moves_by_more_than_half_a_scale(bits: int, inputs: int) -> None:
    torch.manual_seed(bits)
    weight = torch.randn(7, inputs)
    weight[2] = 0
    copy = rounded(weight, bits)
    assert copy.shape == weight.shape
    assert copy[2].count_nonzero() == 0
    for start in range(0, inputs, GROUP):
        block, moved = weight[:, start : start + GROUP], (copy - weight)[:, start : start + GROUP].abs()
        scale = block.abs().amax(1, keepdim=True) / (2 ** (bits - 1) - 1)
        assert (moved <= scale / 2 + 1e-6).all()
        assert moved.max() > scale.max() / 8, "and some do move"
        values = torch.unique(copy[0, start : start + GROUP])
        assert len(values) <= 2**bits - 1
    assert torch.allclose(rounded(copy, bits), copy, atol=1e-6), "a second time changes nothing"


def test_a_copy_is_a_model_folder_with_the_same_embeddings(tmp_path: Path) -> None:
    source = write_tiny_model(tmp_path / "exact")
    target = Path(shutil.copytree(source, tmp_path / "copy"))
    int4(target)
    load_model(target)
    before, after = load_file(source / "model.safetensors"), load_file(target / "model.safetensors")
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed
    assert changed == {name for name in before if name.endswith("proj.weight")}
    assert {file.name for file in source.iterdir()} == {file.name for file in target.iterdir()}

"""Copies of a model with fewer bits in its linear layers: an engine that disagrees with its trainer by a known dose.

The weights are rounded to integers and back (symmetric, to the nearest, one scale for each GROUP inputs of an output),
and written in their own type as an ordinary model folder, which vLLM loads. Embeddings and norms stay as they are. The
trainer keeps the exact weights.
"""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

GROUP = 32
"""Inputs of a linear layer that share a scale."""


def rounded(weight: "Tensor", bits: int) -> "Tensor":
    """A matrix [outputs, inputs] through integers of so many bits: off by at most half a scale everywhere."""
    import torch

    largest = 2 ** (bits - 1) - 1
    rows, inputs = weight.shape
    padded = torch.nn.functional.pad(weight.double(), (0, -inputs % GROUP)).view(rows, -1, GROUP)
    # a group of zeros would divide by zero; whatever its scale, it stays zeros
    scale = (padded.abs().amax(2, keepdim=True) / largest).clamp(min=1e-30)
    whole = (padded / scale).round().clamp(-largest, largest) * scale
    copy: Tensor = whole.view(rows, -1)[:, :inputs].to(weight.dtype)
    return copy


def write_copy(source: Path, target: Path, bits: int) -> None:
    """``source``, a folder of a model in one safetensors file, with its linear layers rounded, as ``target``."""
    from safetensors.torch import load_file, save_file

    target.mkdir(parents=True, exist_ok=True)
    for file in source.iterdir():
        if file.suffix != ".safetensors":
            shutil.copyfile(file, target / file.name)
    weights = load_file(source / "model.safetensors")
    changed = {name: rounded(w, bits) if name.endswith("proj.weight") else w for name, w in weights.items()}
    save_file(changed, target / "model.safetensors", metadata={"format": "pt"})

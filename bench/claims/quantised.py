"""Copies of a model with fewer bits in its linear layers: an engine that disagrees with its trainer by a known dose.

The weights are rounded to integers and back (symmetric, to the nearest, one scale for each GROUP inputs of an output),
in their own type: what is left is an ordinary model folder, which vLLM loads. Embeddings and norms stay as they are.
The trainer keeps the exact weights.
"""

from collections.abc import Callable
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


def round_folder(folder: Path, bits: int) -> None:
    """Round the linear layers of the model in ``folder``, which has one safetensors file."""
    from safetensors.torch import load_file, save_file

    file = folder / "model.safetensors"
    weights = load_file(file)
    changed = {name: rounded(w, bits) if name.endswith("proj.weight") else w for name, w in weights.items()}
    draft = file.with_suffix(".tmp")  # the tensors that were read may still lie in the old file
    save_file(changed, draft, metadata={"format": "pt"})
    draft.rename(file)


def int8(folder: Path) -> None:
    """A dose of 8 bits."""
    round_folder(folder, 8)


def int4(folder: Path) -> None:
    """A dose of 4 bits."""
    round_folder(folder, 4)


def int3(folder: Path) -> None:
    """A dose of 3 bits."""
    round_folder(folder, 3)


DOSES: dict[str, Callable[[Path], None]] = {dose.__name__: dose for dose in (int8, int4, int3)}

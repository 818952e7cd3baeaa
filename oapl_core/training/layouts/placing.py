"""Places of a micro-batch's tokens: computed on the host, which knows all lengths, and sent to the device once.

A program may ask a GPU for such a place: by nonzero, a mask as an index, or an int of a tensor. It then waits until the
GPU has done all launched work. The next micro-batch is launched into an empty queue. So masks stay on the host, and the
device gets places.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

VARIABLE_LENGTH = "oapl_variable_length"
"""Attention that is told where in a row sequences end, by its name among transformers' (``attention.py``)."""


def sent(tensor: Tensor, device: torch.device | None) -> Tensor:
    """Send ``tensor`` to ``device``, without waiting for what the device does now; None: where it is."""
    if device is None or tensor.device == device:
        return tensor
    # from memory that the system may move, a copy would be waited for
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def places(mask: Tensor) -> Tensor:
    """Return the places where a mask of any shape is true, as numbers of its flat entries, [T], in order."""
    return mask.flatten().nonzero()[:, 0]


def spread(value_T: Tensor, place_T: Tensor, shape: Sequence[int]) -> Tensor:
    """Make a tensor of ``shape`` with each value at its place, as ``places`` numbers them, and 0 elsewhere."""
    flat = value_T.new_zeros(torch.Size(shape).numel())
    return flat.index_copy(0, place_T, value_T).view(*shape)


def bounds(position_T: Tensor) -> tuple[Tensor, int]:
    """Find the ends of the sequences of a row, int32, [sequences + 1], and the length of the longest.

    Args:
        position_T: place of each token in its sequence, counted from 0.
    """
    (starts,) = (position_T == 0).nonzero(as_tuple=True)
    bound = torch.cat([starts, starts.new_tensor([len(position_T)])])
    return bound.int(), int(bound.diff().max())


def response_mask(prompt_length_S: Tensor, length_S: Tensor, width: int, sampled_ST: Tensor | None = None) -> Tensor:
    """Return a mask, [S, width - 1], true in column t if token t + 1 belongs to the response. Stored lengths decide,
    never token ids.

    With ``sampled_ST``, of the same shape, only where that is true, too: between turns the environment speaks.
    """
    position_T = torch.arange(1, width, device=length_S.device)
    is_response_ST = (position_T >= prompt_length_S[:, None]) & (position_T < length_S[:, None])
    return is_response_ST if sampled_ST is None else is_response_ST & sampled_ST

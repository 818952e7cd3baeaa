"""Where the tokens of a micro-batch lie: worked out on the host, which knows all lengths, and sent to the device once.

A program that asks a GPU for such a place (nonzero, a mask as an index, an int of a tensor) waits until the GPU has
done all that was launched before; then it launches the next micro-batch into an empty queue. So masks stay on the host,
and the device gets places.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def sent(tensor: Tensor, device: torch.device | None) -> Tensor:
    """``tensor`` on ``device``, without waiting for what the device does now; None: where it is."""
    if device is None or tensor.device == device:
        return tensor
    # from memory that the system may move, a copy would be waited for
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def places(mask: Tensor) -> Tensor:
    """Where a mask of any shape is true, as numbers of its flat entries, [T], in order."""
    return mask.flatten().nonzero()[:, 0]


def spread(value_T: Tensor, place_T: Tensor, shape: Sequence[int]) -> Tensor:
    """A tensor of ``shape`` with each value at its place, as ``places`` numbers them, and 0 elsewhere."""
    flat = value_T.new_zeros(torch.Size(shape).numel())
    return flat.index_copy(0, place_T, value_T).view(*shape)

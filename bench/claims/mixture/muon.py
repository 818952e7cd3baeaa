"""Muon for a GPU that waits for its host: matrices of one shape are orthogonalised together, in a few kernels.

The step is that of `torch.optim.Muon` with ``adjust_lr_fn="match_rms_adamw"``, to rounding; that one takes each of the
mixture's 56 matrices alone.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

COEFFICIENTS = (3.4445, -4.775, 2.0315)
"""Of the quintic iteration (Keller Jordan, Muon: An optimizer for hidden layers in neural networks)."""
ITERATIONS, MOMENTUM, LEAST_NORM = 5, 0.95, 1e-7


class StackedMuon(torch.optim.Optimizer):
    """Muon with Nesterov momentum, whose updates have the root mean square of AdamW's."""

    def __init__(self, matrices: Iterable[Tensor], lr: float, weight_decay: float) -> None:
        """Matrices alone; every one needs a gradient in each step."""
        super().__init__(matrices, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One step of all matrices."""
        assert closure is None, "gradients are there already"
        for group in self.param_groups:
            shapes: dict[torch.Size, list[Tensor]] = {}
            for matrix in group["params"]:
                shapes.setdefault(matrix.shape, []).append(matrix)
            for own in shapes.values():
                self._together(own, group)

    def _together(self, own: list[Tensor], group: dict[str, Any]) -> None:
        gradient_NAB = torch.stack([matrix.grad for matrix in own if matrix.grad is not None])
        # one state for a shape, kept with its first matrix
        state = self.state[own[0]]
        moment_NAB = state.setdefault("moment", torch.zeros_like(gradient_NAB))
        moment_NAB.lerp_(gradient_NAB, 1 - MOMENTUM)
        update_NAB = orthogonal(gradient_NAB.lerp(moment_NAB, MOMENTUM))
        torch._foreach_mul_(own, 1 - group["lr"] * group["weight_decay"])
        size = 0.2 * math.sqrt(max(own[0].shape))
        torch._foreach_add_(own, list(update_NAB.to(own[0].dtype).unbind()), alpha=-group["lr"] * size)


def orthogonal(x_NAB: Tensor) -> Tensor:
    """Matrices with nearly the same singular vectors whose singular values are nearly 1, [N, A, B] in 16 bits."""
    a, b, c = COEFFICIENTS
    is_tall = x_NAB.shape[1] > x_NAB.shape[2]
    x = x_NAB.bfloat16()
    x = x.mT if is_tall else x
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=LEAST_NORM)
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if is_tall else x

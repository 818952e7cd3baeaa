"""CISPO (MiniMax-M1, arXiv 2506.13585, eq. 4-5): the importance weight is truncated, no token loses its gradient.

    g = (1/tokens) sum_i sum_t min(rho_it, bound) A_i grad ln pi(y_it),     A = (r - mean r) / std r

The weight is held constant. The paper bounds it from above only and gives no number; 5 is what ScaleRL recommends.
"""

from typing import ClassVar, Literal

from pydantic import PositiveFloat

from oapl_core.objectives.inputs import Inputs, Loss
from oapl_core.objectives.method import Method
from oapl_core.objectives.tokens import TokenAverage, weighted_logprobs


class Cispo(Method):
    """REINFORCE with truncated importance weights."""

    name: Literal["cispo"] = "cispo"
    largest_ratio: PositiveFloat = 5.0
    """Bound of pi/b as a weight."""
    token_average: TokenAverage = "batch"

    standardises: ClassVar[bool] = True

    def loss(self, inputs: Inputs) -> Loss:
        """Compute -(1/tokens) sum A min(rho, bound) ln(pi/b)."""
        ratio_ST = inputs.held.exp()
        # a weight, so no clipped token: even the largest ratio's token keeps a gradient
        weight_ST = ratio_ST.clamp(max=self.largest_ratio) * inputs.advantage_S[:, None]
        value = weighted_logprobs(weight_ST, inputs, self.token_average)
        return Loss(value, clipped_ST=(ratio_ST > self.largest_ratio) & inputs.mask_ST)

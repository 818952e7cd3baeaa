"""MinPRO, the minimum prefix ratio (arXiv 2601.22718): a stable stand-in for the product of a prefix's ratios.

    g = (1/tokens) sum_i sum_t w_it A_i grad ln pi(y_it),     w_it = min( rho_it min_{j<t} rho_ij, bound )

Off-policy, a token's exact weight is the product of all ratios up to it. MinPRO keeps the token's own and replaces the
product of those before it by the smallest of them (1 for the first token). The form taken: the weight is held constant
and bounded as in CISPO; A = (r - mean r) / std r.
"""

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import PositiveFloat

from oapl_core.objectives.inputs import Inputs, Loss
from oapl_core.objectives.method import Method
from oapl_core.objectives.tokens import TokenAverage, weighted_logprobs

if TYPE_CHECKING:
    from torch import Tensor


def smallest_before(log_ratio_ST: "Tensor", mask_ST: "Tensor") -> "Tensor":
    """Return the smallest log-ratio of the response's tokens before each token, [S, T]; 0 where there is none."""
    # infinity outside the response, so that neither prompt nor padding is ever the smallest
    least_ST = log_ratio_ST.masked_fill(~mask_ST, float("inf")).cummin(1).values
    before_ST = least_ST.new_full(least_ST.shape, float("inf"))
    before_ST[:, 1:] = least_ST[:, :-1]
    return before_ST.masked_fill(before_ST.isinf(), 0.0)


class Minpro(Method):
    """REINFORCE weighted by a token's ratio and the smallest one before it."""

    name: Literal["minpro"] = "minpro"
    largest_ratio: PositiveFloat = 5.0
    """Bound of the weight."""
    token_average: TokenAverage = "batch"

    standardises: ClassVar[bool] = True

    def loss(self, inputs: Inputs) -> Loss:
        """Compute -(1/tokens) sum A w ln(pi/b)."""
        weight_ST = (inputs.held + smallest_before(inputs.held, inputs.mask_ST)).exp()
        bounded_ST = weight_ST.clamp(max=self.largest_ratio) * inputs.advantage_S[:, None]
        value = weighted_logprobs(bounded_ST, inputs, self.token_average)
        return Loss(value, clipped_ST=(weight_ST > self.largest_ratio) & inputs.mask_ST)

"""A*-PO (arXiv 2505.20686): regress beta2 ln(pi/ref) on r - V*, with V* estimated by beta1 ln mean exp(r/beta1).

The paper estimates V* once from rollouts of the base model and then samples from the policy. From stored rollouts both
are the same rows and ref is b: what is left is OAPL's loss with the paper's own beta1.
"""

from typing import TYPE_CHECKING, Literal

from pydantic import PositiveFloat

from oapl_core.objectives.inputs import Inputs, Loss
from oapl_core.objectives.method import Method
from oapl_core.objectives.oapl import oapl_loss
from oapl_core.objectives.values import log_mean_exp_values

if TYPE_CHECKING:
    from torch import Tensor


class AStarPo(Method):
    """Regression on the optimal advantage."""

    name: Literal["a_star_po"] = "a_star_po"
    """Names the folder of the checkpoints it makes."""
    value_temperature: PositiveFloat = 0.5
    """beta1 of V*."""
    regression_temperature: PositiveFloat = 1e-3
    """beta2 of the regression."""

    def advantages(self, reward_S: "Tensor", group_S: "Tensor") -> "Tensor":
        """r - V*."""
        return reward_S.double() - log_mean_exp_values(reward_S, group_S, self.value_temperature)

    def loss(self, inputs: Inputs) -> Loss:
        """(1/N) sum_i ( beta2 s_i - A_i )^2."""
        s_S, beta2 = inputs.log_ratio_S, self.regression_temperature
        value = oapl_loss(s_S, inputs.advantage_S, beta2, inputs.counts.sequences)
        return Loss(value, residual_S=beta2 * s_S.detach() - inputs.advantage_S)

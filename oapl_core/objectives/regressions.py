"""Published methods that are OAPL's regression (``oapl.py``) with other constants, once b and the rollouts are given.

They differ in V, and in the loss's scale:

    A*-PO (2505.20686)          V with beta1 0.5. The paper estimates V once from rollouts of the base model and then
                                samples from the policy; from stored rollouts both are the same rows
    DRO (2405.19107)            half of it with V = mean r. The paper learns V with a second network, from one rollout
                                a prompt; a group's mean minimises the loss over V at pi = b
    OPMD (2509.24203, 4.2)      1/(2 tau) of it with V = mean r, less a constant: (1/N) sum_i ( -A_i s_i + tau/2 s_i^2 )
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from pydantic import PositiveFloat

from oapl_core.objectives.inputs import Inputs, Loss
from oapl_core.objectives.method import Method
from oapl_core.objectives.oapl import regression
from oapl_core.objectives.values import log_mean_exp_values

if TYPE_CHECKING:
    from torch import Tensor


# They have no more settings than their papers: the ledger of a run compares an arm's settings key by key.
class AStarPo(Method):
    """A*-PO: OAPL with the paper's beta1."""

    name: Literal["a_star_po"] = "a_star_po"
    value_temperature: PositiveFloat = 0.5
    """beta1 of V."""
    regression_temperature: PositiveFloat = 1e-3
    """beta2."""

    def advantages(self, reward_S: "Tensor", group_S: "Tensor") -> "Tensor":
        """Return r - V, [S], float64."""
        return reward_S.double() - log_mean_exp_values(reward_S, group_S, self.value_temperature)

    def loss(self, inputs: Inputs) -> Loss:
        """Compute equation 3 for the sum of each response's log-ratios."""
        return regression(inputs.log_ratio_S, inputs, self.regression_temperature)


class Dro(Method):
    """DRO: half of OAPL's loss around the group's mean reward."""

    name: Literal["dro"] = "dro"
    regression_temperature: PositiveFloat = 1.0
    """tau. The paper's 1.0 is for short answers; for long ones it holds the policy at b."""

    def loss(self, inputs: Inputs) -> Loss:
        """Compute (1/2N) sum_i ( tau s_i - A_i )^2."""
        whole = regression(inputs.log_ratio_S, inputs, self.regression_temperature)
        return replace(whole, value=whole.value / 2)


class Opmd(Method):
    """OPMD: REINFORCE with a quadratic anchor to the behaviour policy."""

    name: Literal["opmd"] = "opmd"
    regression_temperature: PositiveFloat = 0.1
    """tau of the anchor."""

    def loss(self, inputs: Inputs) -> Loss:
        """Compute (1/N) sum_i ( -A_i s_i + (tau/2) s_i^2 )."""
        s_S, tau = inputs.log_ratio_S, self.regression_temperature
        value = (-inputs.advantage_S * s_S + tau / 2 * s_S.square()).sum() / inputs.sizes.sequences
        return Loss(value, residual_S=tau * s_S.detach() - inputs.advantage_S)

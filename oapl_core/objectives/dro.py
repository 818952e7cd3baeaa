"""DRO, direct reward optimisation (arXiv 2405.19107): L = (1/2N) sum_i ( r_i - V - tau s_i )^2.

The paper learns V(x) with a second network, from one rollout a prompt. The form taken here has a group of rollouts and
no network: V is the group's mean reward, which minimises the loss over V at pi = b.
"""

from typing import Literal

from pydantic import PositiveFloat

from oapl_core.objectives.inputs import Inputs, Loss
from oapl_core.objectives.method import Method
from oapl_core.objectives.oapl import oapl_loss


class Dro(Method):
    """A quadratic loss around the group's mean reward."""

    name: Literal["dro"] = "dro"
    """Names the folder of the checkpoints it makes."""
    regression_temperature: PositiveFloat = 1.0
    """tau. The paper's 1.0 is for short answers; for long ones it holds the policy at b."""

    def loss(self, inputs: Inputs) -> Loss:
        """Half of OAPL's loss with the mean as value."""
        s_S, tau = inputs.log_ratio_S, self.regression_temperature
        value = oapl_loss(s_S, inputs.advantage_S, tau, inputs.counts.sequences) / 2
        return Loss(value, residual_S=tau * s_S.detach() - inputs.advantage_S)

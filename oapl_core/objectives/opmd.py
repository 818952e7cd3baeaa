"""OPMD, online policy mirror descent as Kimi k1.5 uses it (arXiv 2509.24203, section 4.2).

    L = (1/N) sum_i ( -A_i l_i + (tau/2) s_i^2 ),     A_i = r_i - mean r

l_i = ln pi(y_i); here ln b(y_i), a constant, is subtracted. The square is of the SEQUENCE's sum. With the same baseline
the gradient is OAPL's divided by 2 beta2, for tau = beta2.
"""

from typing import Literal

from pydantic import PositiveFloat

from oapl_core.objectives.inputs import Inputs, Loss
from oapl_core.objectives.method import Method


class Opmd(Method):
    """REINFORCE with a quadratic anchor to the behavior policy."""

    name: Literal["opmd"] = "opmd"
    """Names the folder of the checkpoints it makes."""
    regression_temperature: PositiveFloat = 0.1
    """tau of the anchor."""

    def loss(self, inputs: Inputs) -> Loss:
        """The formula above."""
        s_S, tau = inputs.log_ratio_S, self.regression_temperature
        value = (-inputs.advantage_S * s_S + tau / 2 * s_S.square()).sum() / inputs.counts.sequences
        return Loss(value, residual_S=tau * s_S.detach() - inputs.advantage_S)

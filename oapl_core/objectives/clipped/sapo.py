"""SAPO, soft adaptive policy optimisation (arXiv 2511.20347): a sigmoid gate in the place of PPO's clip.

    maximise (1/N) sum_i (1/T_i) sum_t A_i f(rho_it),     f(x) = (4/tau) sigmoid( tau (x - 1) )

A = (r - mean r) / std r, and tau depends on its sign. The gradient of a token is 4 rho p (1 - p) times that of A ln pi,
with the sigmoid's p. It is 1 at pi = b, and goes to 0 as the ratio leaves 1 on either side. The losses of verl,
ms-swift and Trinity have the same gate. They clamp ln rho at +-20, where it is flat.
"""

from typing import ClassVar, Literal

from pydantic import PositiveFloat

from oapl_core.objectives.inputs import Inputs, Loss
from oapl_core.objectives.method import Method
from oapl_core.objectives.tokens import TokenAverage, share


class Sapo(Method):
    """GRPO with a soft clip."""

    name: Literal["sapo"] = "sapo"
    temperature_better: PositiveFloat = 1.0
    """tau of answers with A > 0 (paper)."""
    temperature_worse: PositiveFloat = 1.05
    """tau of the others (paper): larger, so that their gradient fades sooner."""
    token_average: TokenAverage = "sequence"

    standardises: ClassVar[bool] = True

    def loss(self, inputs: Inputs) -> Loss:
        """Compute -(1/N) sum_i (1/T_i) sum_t A f(rho)."""
        advantage_S1 = inputs.advantage_S[:, None]
        tau_S1 = (advantage_S1 * 0 + self.temperature_better).where(advantage_S1 > 0, self.temperature_worse)
        # a ratio that overflows would make the gradient 0 times infinity; the gate is flat long before
        ratio_ST = inputs.log_ratio.clamp(-30.0, 30.0).exp()
        gate_ST = 4.0 / tau_S1 * (tau_S1 * (ratio_ST - 1.0)).sigmoid()
        value = -(advantage_S1 * share(inputs, self.token_average) * gate_ST * inputs.mask_ST).sum()
        return Loss(value)

"""VESPO, variational sequence-level soft policy optimisation (arXiv 2602.10693, section 3.4).

    g = (1/tokens) sum_i phi(w_i) A_i grad ln pi(y_i),     w = pi(y)/b(y),     phi(w) = w^k exp( lambda (1 - w) )

A = (r - mean r) / std r. phi(1) = 1, and phi falls on both sides of its top at w = k/lambda. An answer gets no weight
when the policy hardly gives it any more. The same holds when the answer has become much likelier than it was. k and
lambda differ with the sign of A. phi is of whole sequences and held constant. The authors' code (FloyedShen/VESPO,
recipe/vespo/code/core_algos.py) and TRL's `get_gamma_weights` clamp ln w at +-20, where phi is below 1e-15. Here phi is
computed in logs and needs no clamp.
"""

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import NonNegativeFloat

from oapl_core.objectives.inputs import Inputs, Loss
from oapl_core.objectives.method import Method
from oapl_core.objectives.tokens import TokenAverage, weighted_logprobs

if TYPE_CHECKING:
    from torch import Tensor


class Vespo(Method):
    """REINFORCE whose answers are weighted by a soft kernel of their ratio."""

    name: Literal["vespo"] = "vespo"
    power: NonNegativeFloat = 2.0
    """k where A >= 0 (the authors' code; so are the other three)."""
    decay: NonNegativeFloat = 3.0
    """lambda where A >= 0."""
    power_below: NonNegativeFloat = 3.0
    """k where A < 0."""
    decay_below: NonNegativeFloat = 2.0
    """lambda where A < 0."""
    token_average: TokenAverage = "batch"

    standardises: ClassVar[bool] = True

    def weights(self, s_S: "Tensor", advantage_S: "Tensor") -> "Tensor":
        """Return phi(exp(s)), [S], with power and decay chosen by the sign of the advantage."""
        power_S = (s_S * 0 + self.power).where(advantage_S >= 0, self.power_below)
        decay_S = (s_S * 0 + self.decay).where(advantage_S >= 0, self.decay_below)
        # exp(709) is the largest that float64 holds; infinity times a decay of 0 would be not-a-number
        return (power_S * s_S - decay_S * s_S.clamp(max=700.0).expm1()).exp()

    def loss(self, inputs: Inputs) -> Loss:
        """Compute -(1/tokens) sum phi A s."""
        weight_S = self.weights(inputs.log_ratio_S.detach(), inputs.advantage_S)
        weight_S1 = (weight_S * inputs.advantage_S)[:, None]
        return Loss(weighted_logprobs(weight_S1, inputs, self.token_average))

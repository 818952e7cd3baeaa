"""OAPL: optimal advantage-based policy optimisation with a lagged inference policy (arXiv 2602.19362, eq. 3).

The optimum of  max E r(x,y) - beta KL(pi || b)  satisfies  beta ln(pi/b) = r - V.  OAPL regresses one on the other:

    L = (1/N) sum_i ( beta2 s_i - (r_i - V) )^2,     s_i = sum_t ( ln pi(y_it) - ln b(y_it) )

summed over the response's tokens, averaged over the N sequences of the global batch. b sampled the rollouts; there is
no importance ratio, no clipping, no division by a standard deviation, no entropy bonus and no further KL term.
Options, off by default: another rule for V, and s_i / T_i^alpha in place of s_i.
"""

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, PositiveFloat

from oapl_core.objectives.inputs import Inputs, Loss
from oapl_core.objectives.method import Method
from oapl_core.objectives.values import ValueRule, values

if TYPE_CHECKING:
    from torch import Tensor


def oapl_loss(
    log_ratio_S: "Tensor", advantage_S: "Tensor", regression_temperature: float, global_sequences: int
) -> "Tensor":
    """The part of eq. 3 that the given sequences contribute; parts of one global batch add up to its loss.

    Args:
        log_ratio_S: s_i, nats.
        advantage_S: r_i - V, constants.
        regression_temperature: beta2.
        global_sequences: N, sequences of the whole optimiser step over all micro-batches and ranks.

    Raises:
        ValueError: the two vectors differ in shape, or there are fewer global sequences than given ones.
    """
    if log_ratio_S.shape != advantage_S.shape:
        raise ValueError(f"log-ratios and advantages differ in shape: {log_ratio_S.shape}, {advantage_S.shape}")
    if global_sequences < max(1, len(log_ratio_S)):
        raise ValueError(f"{len(log_ratio_S)} sequences cannot be part of a batch of {global_sequences}")
    residual_S = regression_temperature * log_ratio_S - advantage_S.detach()
    return residual_S.square().sum() / global_sequences


class Oapl(Method):
    """OAPL's regression (paper, eq. 2 and 3)."""

    name: Literal["oapl"] = "oapl"
    """Names the folder of the checkpoints it makes."""
    value_temperature: PositiveFloat = 1.0
    """beta1 of V = beta1 ln mean exp(r/beta1); towards 0 the best reward, towards infinity the mean."""
    regression_temperature: PositiveFloat = 1e-3
    """beta2 of (beta2 sum log(pi/b) - (r - V))^2."""
    value: ValueRule = "log_mean_exp"
    """V: `log_mean_exp` (the paper), `leave_one_out` (the same of the group's other rollouts), `mean`, or
    `shifted_mean` (the mean plus `value_shift`)."""
    value_shift: float = 0.0
    """Added to the mean by `shifted_mean`. In units of the reward."""
    length_exponent: Annotated[float, Field(ge=0.0)] = 0.0
    """alpha of s_i / T_i^alpha, T_i the response's tokens; 0 is the paper's sum, 1 a mean over tokens."""

    def advantages(self, reward_S: "Tensor", group_S: "Tensor") -> "Tensor":
        """r - V in float64; needs every valid rollout of each group."""
        return reward_S.double() - values(self.value, reward_S, group_S, self.value_temperature, self.value_shift)

    def loss(self, inputs: Inputs) -> Loss:
        """Eq. 3, summed in float64."""
        s_S = inputs.log_ratio_S
        if self.length_exponent:
            s_S = s_S / inputs.length_S**self.length_exponent
        value = oapl_loss(s_S, inputs.advantage_S, self.regression_temperature, inputs.counts.sequences)
        return Loss(value, residual_S=self.regression_temperature * s_S.detach() - inputs.advantage_S)

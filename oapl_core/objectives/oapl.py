"""OAPL: optimal advantage-based policy optimisation with a lagged inference policy (arXiv 2602.19362, eq. 3).

The optimum of  max E r(x,y) - beta KL(pi || b)  satisfies  beta ln(pi/b) = r - V.  OAPL regresses one on the other:

    L = (1/N) sum_i ( beta2 s_i - (r_i - V) )^2,     s_i = sum_t ( ln pi(y_it) - ln b(y_it) )

s_i sums over the response's tokens, L averages over the N sequences of the global batch. b sampled the rollouts. There
is no importance ratio, no clipping, no division by a standard deviation, no entropy bonus and no further KL term. Names
end in the axes of their tensor: S sequences, T tokens, K statistics. Other divergences: `oapl_variant.py`.

V decides where the regression ends. Over normalised policies its minimum is beta2 ln w + kappa w = r - V for w = pi/b.
kappa is the multiplier of sum pi = 1 over 2 beta2. E_b w = 1 makes kappa = E_b[r - V] + beta2 KL(b, pi). With beta1 =
beta2 kappa is 0 and w = exp((r - V)/beta2). Above 0 w grows more slowly than that (a Lambert function), below it
faster. `beta_shifted_mean`, V = mean r - beta2, has kappa >= beta2 for any rewards. It is the "beta-shifted mean" of
arXiv 2605.28150; docs/objectives.md names the parts of that paper that were read.
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
    """Compute the part of equation 3 that the given sequences contribute; parts of one global batch add up to its loss.

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


def regression(s_S: "Tensor", inputs: Inputs, regression_temperature: float) -> Loss:
    """Compute equation 3 in float64 for the given s_i, and the residuals, [S]."""
    value = oapl_loss(s_S, inputs.advantage_S, regression_temperature, inputs.sizes.sequences)
    return Loss(value, residual_S=regression_temperature * s_S.detach() - inputs.advantage_S)


class Oapl(Method):
    """OAPL's regression (paper, eq. 2 and 3)."""

    name: Literal["oapl"] = "oapl"
    value_temperature: PositiveFloat = 1.0
    """beta1 of V = beta1 ln mean exp(r/beta1); towards 0 the best reward, towards infinity the mean."""
    regression_temperature: PositiveFloat = 1e-3
    """beta2 of (beta2 sum log(pi/b) - (r - V))^2."""
    value: ValueRule = "log_mean_exp"
    """V: `log_mean_exp` (the paper), `leave_one_out` (the same of the group's other rollouts), `mean`,
    `shifted_mean` (the mean plus `value_shift`), or `beta_shifted_mean` (the mean less beta2)."""
    value_shift: float = 0.0
    """Shift that `shifted_mean` adds to the mean, in units of the reward."""
    length_exponent: Annotated[float, Field(ge=0.0)] = 0.0
    """alpha of s_i / T_i^alpha, T_i the response's tokens; 0 is the paper's sum, 1 a mean over tokens."""

    def advantages(self, reward_S: "Tensor", group_S: "Tensor") -> "Tensor":
        """Compute r - V in float64; needs every valid rollout of each group."""
        shift = -self.regression_temperature if self.value == "beta_shifted_mean" else self.value_shift
        return reward_S.double() - values(self.value, reward_S, group_S, self.value_temperature, shift)

    def loss(self, inputs: Inputs) -> Loss:
        """Compute equation 3, with s_i / T_i^alpha in place of s_i if ``length_exponent`` is above 0."""
        s_S = inputs.log_ratio_S
        if self.length_exponent:  # dividing by T^0 would change no number, but cost a power for each sequence
            s_S = s_S / inputs.length_S**self.length_exponent
        return regression(s_S, inputs, self.regression_temperature)

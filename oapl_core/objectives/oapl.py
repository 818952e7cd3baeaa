"""OAPL: optimal advantage-based policy optimisation with a lagged inference policy (arXiv 2602.19362, eq. 3).

The optimum of  max E r(x,y) - beta KL(pi || b)  satisfies  beta ln(pi/b) = r - V.  OAPL regresses one on the other:

    L = (1/N) sum_i ( beta2 s_i - (r_i - V) )^2,     s_i = sum_t ( ln pi(y_it) - ln b(y_it) )

summed over the response's tokens, averaged over the N sequences of the global batch. b sampled the rollouts; there is
no importance ratio, no clipping, no division by a standard deviation, no entropy bonus and no further KL term.
"""

from typing import TYPE_CHECKING

from oapl_core.config import Oapl
from oapl_core.objectives.values import log_mean_exp_values

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


class OaplObjective:
    """Eq. 2 and 3 with the experiment's two temperatures."""

    def __init__(self, settings: Oapl) -> None:
        """Settings hold beta1 and beta2."""
        self.settings = settings

    def advantages(self, reward_S: "Tensor", group_S: "Tensor") -> "Tensor":
        """r - V in float64; needs every valid rollout of each group."""
        return reward_S.double() - log_mean_exp_values(reward_S, group_S, self.settings.value_temperature)

    def loss(self, log_ratio_ST: "Tensor", advantage_S: "Tensor", global_sequences: int) -> "Tensor":
        """Eq. 3 over padded per-token log-ratios, summed in float64."""
        log_ratio_S = log_ratio_ST.double().sum(1)
        return oapl_loss(log_ratio_S, advantage_S, self.settings.regression_temperature, global_sequences)

    def residuals(self, log_ratio_ST: "Tensor", advantage_S: "Tensor") -> "Tensor":
        """beta2 s_i - (r_i - V), which eq. 3 squares."""
        return self.settings.regression_temperature * log_ratio_ST.double().sum(1) - advantage_S

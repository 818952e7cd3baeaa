"""GRPO (arXiv 2509.24203, section 4.1), and GRPO with token importance sampling, the OAPL paper's baseline.

    g = (1/N) sum_i sum_t C_it A_i rho_it M_it grad ln pi(y_it),     A = (r - mean r) / std r
    M = 1(A > 0, rho <= 1 + high) + 1(A < 0, rho >= 1 - low)

GRPO: rho = pi/b, C = 1. With token importance sampling (arXiv 2602.19362, section 2): rho = pi/pi_old, where pi_old is
the trainer's weights at the start of the round, and C = min(pi_old/b, bound) corrects for what engine and trainer, or
a lag, put between the two. The mask gives the gradient of PPO's min(rho A, clip(rho) A).
"""

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, PositiveFloat

from oapl_core.objectives.group_means import standardised
from oapl_core.objectives.inputs import Inputs, Loss
from oapl_core.objectives.method import Method
from oapl_core.objectives.tokens import TokenAverage, clipped, one_side, weighted_ratios

if TYPE_CHECKING:
    from torch import Tensor

Clip = Annotated[float, Field(ge=0.0)]


class Grpo(Method):
    """Clipped token ratios to the behavior policy."""

    name: Literal["grpo"] = "grpo"
    """Names the folder of the checkpoints it makes."""
    clip_low: Clip = 0.2
    """A token of a worse answer is left alone once its ratio is below 1 - clip_low."""
    clip_high: Clip = 0.2
    """A token of a better answer is left alone once its ratio is above 1 + clip_high."""
    token_average: TokenAverage = "sum"
    """How tokens are weighed."""

    def advantages(self, reward_S: "Tensor", group_S: "Tensor") -> "Tensor":
        """(r - mean) / standard deviation of the group; 0 where all are equal."""
        return standardised(reward_S, group_S)

    def loss(self, inputs: Inputs) -> Loss:
        """-(1/N) sum A rho M."""
        advantage_S1 = inputs.advantage_S[:, None]
        kept_ST = one_side(inputs.held, advantage_S1, self.clip_low, self.clip_high)
        value = weighted_ratios(advantage_S1 * kept_ST, inputs.log_ratio, inputs, self.token_average)
        return Loss(value, clipped_ST=clipped(kept_ST, inputs))


class GrpoTokenIs(Method):
    """Clipped ratios to the round's first weights, each token weighted by those weights' ratio to the behavior."""

    name: Literal["grpo_token_is"] = "grpo_token_is"
    """Names the folder of the checkpoints it makes."""
    clip_low: Clip = 0.2
    """As of `grpo`, for pi/pi_old."""
    clip_high: Clip = 0.2
    """As of `grpo`, for pi/pi_old."""
    largest_weight: PositiveFloat = 2.0
    """C, the bound of pi_old/b."""
    token_average: TokenAverage = "sum"
    """How tokens are weighed."""

    needs_old: ClassVar[bool] = True

    def advantages(self, reward_S: "Tensor", group_S: "Tensor") -> "Tensor":
        """(r - mean) / standard deviation of the group; 0 where all are equal."""
        return standardised(reward_S, group_S)

    def loss(self, inputs: Inputs) -> Loss:
        """-(1/N) sum C A rho M."""
        assert inputs.old_log_ratio_ST is not None, f"{self.name} needs the old policy's log-probs"
        old_ST, advantage_S1 = inputs.old_log_ratio_ST.double(), inputs.advantage_S[:, None]
        log_ratio_ST = inputs.log_ratio - old_ST
        kept_ST = one_side(log_ratio_ST.detach(), advantage_S1, self.clip_low, self.clip_high)
        weight_ST = old_ST.exp().clamp(max=self.largest_weight) * advantage_S1 * kept_ST
        value = weighted_ratios(weight_ST, log_ratio_ST, inputs, self.token_average)
        return Loss(value, clipped_ST=clipped(kept_ST, inputs))

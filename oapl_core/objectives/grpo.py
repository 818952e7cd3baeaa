"""GRPO (arXiv 2509.24203, section 4.1), and GRPO with token importance sampling around the weights of a round's start.

    g = (1/N) sum_i sum_t C_it A_i rho_it M_it grad ln pi(y_it),     A = (r - mean r) / std r
    M = 1(A > 0, rho <= 1 + high) + 1(A < 0, rho >= 1 - low)

GRPO: rho = pi/b, C = 1. With token importance sampling: rho = pi/pi_start, where pi_start is the trainer's weights at
the start of the round, and C = min(pi_start/b, bound) corrects for what engine and trainer, or a lag, put between the
two. The mask gives the gradient of PPO's min(rho A, clip(rho) A).

`grpo_token_is` is NOT the baseline of the OAPL paper (arXiv 2602.19362, section 2), though it has its form: there the
weights that the clip is around are the trainer's of the previous iteration, refreshed at every step (AReaL's decoupled
loss, arXiv 2505.24298), and tokens are averaged over the answer's length. Here they are frozen for the round.
"""

from typing import ClassVar, Literal

from pydantic import PositiveFloat

from oapl_core.objectives.inputs import Inputs, Loss
from oapl_core.objectives.method import Method
from oapl_core.objectives.tokens import Clip, TokenAverage, clipped, clipped_loss, one_side, weighted_ratios


class Grpo(Method):
    """Clipped token ratios to the behaviour policy."""

    name: Literal["grpo"] = "grpo"
    clip_low: Clip = 0.2
    """A token of a worse answer is left alone once its ratio is below 1 - clip_low."""
    clip_high: Clip = 0.2
    """A token of a better answer is left alone once its ratio is above 1 + clip_high."""
    token_average: TokenAverage = "sum"

    standardises: ClassVar[bool] = True

    def loss(self, inputs: Inputs) -> Loss:
        """-(1/N) sum A rho M."""
        kept_ST = one_side(inputs.held, inputs.advantage_S[:, None], self.clip_low, self.clip_high)
        return clipped_loss(kept_ST, inputs, self.token_average)


class GrpoTokenIs(Method):
    """Clipped ratios to the round's first weights, each token weighted by those weights' ratio to the behaviour."""

    name: Literal["grpo_token_is"] = "grpo_token_is"
    clip_low: Clip = 0.2
    """As of `grpo`, for pi/pi_start."""
    clip_high: Clip = 0.2
    """As of `grpo`, for pi/pi_start."""
    largest_weight: PositiveFloat = 2.0
    """C, the bound of pi_start/b."""
    token_average: TokenAverage = "sum"

    standardises: ClassVar[bool] = True
    needs_start: ClassVar[bool] = True

    def loss(self, inputs: Inputs) -> Loss:
        """-(1/N) sum C A rho M."""
        assert inputs.start_log_ratio_ST is not None, f"{self.name} needs the log-probs of the round's first weights"
        start_ST, advantage_S1 = inputs.start_log_ratio_ST.double(), inputs.advantage_S[:, None]
        log_ratio_ST = inputs.log_ratio - start_ST
        kept_ST = one_side(log_ratio_ST.detach(), advantage_S1, self.clip_low, self.clip_high)
        # bounded from above only, as in CISPO: a small weight is harmless, a large one is noise
        weight_ST = start_ST.exp().clamp(max=self.largest_weight) * advantage_S1 * kept_ST
        value = weighted_ratios(weight_ST, log_ratio_ST, inputs, self.token_average)
        return Loss(value, clipped_ST=clipped(kept_ST, inputs))
